"""Whose a proxy's entries are: ours by tag if there is one, by the ledger's URLs elsewhere, or somebody else's [I11].

A blind proxy lists nothing: what it holds is then *believed*, by the ledger's last word on every URL.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from rollbook.events import InvalidName, validate_name
from rollbook.events.facts.base import LONGEST_URL, MAX_INTEGER
from rollbook.projections.ports import Capabilities, Entry, Listing
from rollbook.projections.state.ledger import ProxyRecord, Registration, Told

Life = tuple[str, int]
"""A worker and its incarnation."""

NO_GHOSTS: Final[Mapping[str, Life]] = MappingProxyType({})


class Owned(msgspec.Struct, frozen=True, gc=False):
    """A listed entry that is ours, and whose."""

    worker: str
    incarnation: int
    entry: Entry
    certain: bool = True
    """False where the proxy shows nothing and its last answer about this entry is missing: it may be there or not."""


class Observed(msgspec.Struct, frozen=True, gc=False):
    """A listing with its entries told apart: ours by worker, and the others."""

    owned: dict[str, list[Owned]]
    strangers: tuple[Entry, ...]
    urls: dict[str, Owned | None]
    """Canonical URL → who has it; None for a foreign entry."""

    @property
    def foreign(self) -> tuple[str, ...]:
        """URLs of entries that Rollbook did not make."""
        return tuple(sorted(entry.url for entry in self.strangers))


def observe(
    fleet: str,
    record: ProxyRecord,
    listing: Listing,
    capabilities: Capabilities = Capabilities(),  # noqa: B008 - frozen
    ghosts: Mapping[str, Life] = NO_GHOSTS,
) -> Observed:
    """Tell a listing's entries apart. `ghosts` are URLs without a registration at which an add of ours may appear yet.

    Where nothing can be removed, an entry outlives the life that it was made for: the ledger says whose it is now.
    """
    by_url: Mapping[str, Life] | None = None
    owned: dict[str, list[Owned]] = {}
    strangers: list[Entry] = []
    urls: dict[str, Owned | None] = {}
    # What a router reports twice is there once: whoever removed the second would remove the only one.
    for entry in {(entry.handle, entry.url): entry for entry in listing.entries}.values():
        found = owner_by_tag(fleet, entry)
        if entry.fleet is None or (found is not None and not capabilities.remove):
            if by_url is None:
                by_url = {**ghosts, **owners_by_url(record)}
            life = by_url.get(entry.url)
            if life is not None:
                found = Owned(*life, entry, capabilities.list or _certain(_word(record, life)))
        urls[entry.url] = found
        if found is None:
            strangers.append(entry)
        else:
            owned.setdefault(found.worker, []).append(found)
    return Observed(owned, tuple(strangers), urls)


def owner_by_tag(fleet: str, entry: Entry) -> Owned | None:
    """Whose it is by its tags. Anyone may write tags; what cannot be a life of a worker of ours is none [I10]."""
    if entry.fleet != fleet or entry.worker is None or entry.incarnation is None:
        return None
    if not 1 <= entry.incarnation <= MAX_INTEGER or len(entry.url) > LONGEST_URL:
        return None
    try:
        return Owned(validate_name("worker", entry.worker), entry.incarnation, entry)
    except InvalidName:
        return None


def owners_by_url(record: ProxyRecord) -> dict[str, Life]:
    """Canonical URL → whose it is by the ledger; the newest word on a URL counts."""
    newest: dict[str, tuple[int, str, int]] = {}
    for worker, lives in record.registrations.items():
        for incarnation, registration in lives.items():
            known = newest.get(registration.url)
            if known is None or registration.sequence > known[0]:
                newest[registration.url] = (registration.sequence, worker, incarnation)
    return {url: (worker, incarnation) for url, (_, worker, incarnation) in newest.items()}


def believed(record: ProxyRecord) -> Listing:
    """What a blind proxy holds, as far as the ledger knows: one entry for each URL that it may have been told."""
    words = ((url, _word(record, life)) for url, life in owners_by_url(record).items())
    urls = (url for url, word in words if word.possible or word.told is Told.REGISTERING)
    return Listing(tuple(Entry(url=url, handle=url) for url in urls))


def _word(record: ProxyRecord, life: Life) -> Registration:
    worker, incarnation = life
    return record.registrations[worker][incarnation]


def _certain(registration: Registration) -> bool:
    """Whether it is there by all that was said: a removal that was begun may have worked."""
    return registration.confirmed and registration.told is not Told.DEREGISTERING
