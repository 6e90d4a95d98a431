"""Entries that Rollbook did not make, at a proxy that is to hold no others: removed, with intent and outcome.

Everywhere else they are reported and left alone [I11].
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from rollbook.events import Fact, ForeignRemovalFailed, ForeignRemoved, ForeignRemoving
from rollbook.events.facts.base import LONGEST_URL, MAX_INTEGER
from rollbook.events.reasons import tellable
from rollbook.projections.deciding.observed import observe
from rollbook.projections.ending import end
from rollbook.projections.lanes.desk import Desk
from rollbook.projections.lanes.listing import Seen
from rollbook.projections.lanes.outcomes import LONGEST_REASON
from rollbook.projections.lanes.retries import Retries
from rollbook.projections.log.projector import Projector
from rollbook.projections.log.writer import FencedWriter
from rollbook.projections.ports import Entry, Failed, Unsupported
from rollbook.projections.tell import Tell

AT_ONCE: Final = 2
"""Few: what others left there is no emergency, and our own changes must not wait for it."""
MOST_BEGUN: Final = 50
"""In one pass; the next one goes on."""
LONGEST_TAG: Final = 128


class Strangers:
    """Removes foreign entries at one exclusive proxy, each on a schedule of its own.

    `failed` is called with what a removal failed with that is no answer of the proxy.
    """

    def __init__(
        self,
        desk: Desk,
        projector: Projector,
        writer: FencedWriter,
        retries: Retries,
        tell: Tell,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._desk = desk
        self._projector = projector
        self._writer = writer
        self._retries = retries
        self._tell = tell
        self._failed = failed
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._leaving: dict[str, asyncio.Task[None]] = {}

    @property
    def busy(self) -> bool:
        """Whether any is on its way out."""
        return bool(self._leaving)

    def look(self, strangers: tuple[Entry, ...], seen: Seen) -> None:
        """A complete listing holds these."""
        self._retries.take_due()
        self._retries.forgive(None, {_key(entry) for entry in strangers})
        for entry in strangers:
            key = _key(entry)
            if len(self._leaving) >= MOST_BEGUN:
                return
            if len(entry.url) <= LONGEST_URL and key not in self._leaving and key not in self._retries:
                self._leaving[key] = asyncio.create_task(self._leave(key, entry, seen))

    async def _leave(self, key: str, entry: Entry, seen: Seen) -> None:
        try:
            async with self._slots:
                gone = await self._remove(entry, seen)
            if gone:
                self._retries.succeeded(key)
            else:
                self._retries.failed(key)
        except Exception as exc:  # noqa: BLE001 - not swallowed: handed to the lane, which ends with it
            self._failed(exc)
        finally:
            del self._leaving[key]

    async def _remove(self, entry: Entry, seen: Seen) -> bool:
        desk, proxy = self._desk, self._desk.served.name
        if desk.on_hold() is not None or not desk.urls.usable(entry.url, seen):
            return False
        with desk.urls.changing(entry.url):
            intent = await self._write(
                ForeignRemoving(
                    proxy=proxy,
                    url=entry.url,
                    fleet=_tag(entry.fleet),
                    worker=_tag(entry.worker),
                    incarnation=_number(entry.incarnation),
                )
            )
            reason = self._ours(entry, seen) or desk.on_hold()
            if reason is None:
                answer = await desk.call(lambda: desk.proxy.remove(entry), "remove")
                reason = answer.reason if isinstance(answer, Failed | Unsupported) else await self._gone(entry)
            if reason is not None:
                short = tellable(reason, LONGEST_REASON)
                await self._write(ForeignRemovalFailed(proxy=proxy, url=entry.url, cause=intent, reason=short))
                self._tell("proxy.foreign_removal_failed", proxy=proxy, url=entry.url, reason=short)
                return False
            await self._write(ForeignRemoved(proxy=proxy, url=entry.url, cause=intent))
            self._tell("proxy.foreign_removed", proxy=proxy, url=entry.url)
            return True

    def _ours(self, entry: Entry, seen: Seen) -> str | None:
        """By the log as it is now: where a proxy keeps no tags, it may have become ours since it was listed."""
        observed = observe(self._desk.policy.fleet, self._desk.record, seen.listing, self._desk.proxy.capabilities)
        return None if entry in observed.strangers else "it is ours after all"

    async def _gone(self, entry: Entry) -> str | None:
        return await self._desk.reader.gone(entry, self._desk.policy.reconcile.confirm_deadline)

    async def _write(self, fact: Fact) -> int:
        sequence = await self._writer.write(fact)
        await self._projector.passed(sequence)
        return sequence

    async def close(self) -> None:
        """Stop what is under way."""
        await end(*self._leaving.values())


def _key(entry: Entry) -> str:
    return f"{entry.handle} {entry.url}"


def _tag(text: str | None) -> str | None:
    return None if text is None else text[:LONGEST_TAG]


def _number(number: int | None) -> int | None:
    return number if number is not None and 1 <= number <= MAX_INTEGER else None
