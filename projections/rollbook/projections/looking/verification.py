"""Whether a proxy does what its listing says: the read-back, and who answered real requests. Pure.

Who answers says so (a header that the provider names for the worker, or Rollbook's own), or was seen to count one more
request, or stays unknown. Nobody is called wrong for what happened meanwhile: only who did not belong at the proxy
before the first request, and does not now, should not have answered.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from rollbook.projections.deciding import gates
from rollbook.projections.looking.preview import Line
from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.ports import Identity
from rollbook.projections.state.roster import Roster
from rollbook.projections.state.worker import Phase

WORKER_HEADER = "X-Rollbook-Worker"
INCARNATION_HEADER = "X-Rollbook-Incarnation"
"""What any worker may answer with, to be known without its provider: its name and the number of its life."""

LONGEST_SAID: Final = 200
"""Letters of a name that anybody may have made up."""
_LIFE: Final = re.compile(r"[1-9][0-9]{0,15}")
"""As many digits as the largest has: Python reads no number of thousands."""


class Verdict(StrEnum):
    """About whoever answered."""

    RIGHT = "right"
    """It belongs at the proxy."""
    DEAD = "dead"
    """The log knew that this life was over."""
    FOREIGN = "foreign"
    """No worker of the fleet."""
    UNWANTED = "unwanted"
    """A worker of the fleet that lives and does not belong there: cordoned, draining, of another pool."""
    UNKNOWN = "unknown"
    """It did not say who it is."""


WRONG = frozenset({Verdict.DEAD, Verdict.FOREIGN, Verdict.UNWANTED})


class Who(msgspec.Struct, frozen=True):
    """Who answered one request, by its own word."""

    worker: str | None
    """None if no worker of the fleet says it is that."""
    incarnation: int | None
    """None if only the name was said; then it is taken to be the present life."""
    said: str
    """The word itself."""


class Answerer(msgspec.Struct, frozen=True, kw_only=True):
    """One of those that answered."""

    worker: str | None
    incarnation: int | None
    requests: int
    verdict: Verdict
    how: str
    """How it is known: `said so`, `counted`, or `not known`."""
    reason: str | None = None
    """Of a wrong one: why it should not have answered."""


class ProxyVerification(msgspec.Struct, frozen=True, kw_only=True):
    """One proxy."""

    proxy: str
    kind: str
    unreachable: str | None = None
    """Why it could not be read back."""
    listed: int = 0
    """Entries of ours that it lists, or is believed to hold."""
    drift: tuple[Line, ...] = ()
    """What a pass would change there: as in `plan`."""
    url: str | None = None
    """Where the requests were sent; None if none were."""
    sent: int = 0
    failed: dict[str, int] = {}
    """What went wrong with requests, and how often."""
    answered: tuple[Answerer, ...] = ()
    notes: tuple[str, ...] = ()
    """For people: what could not be told, and why no request was sent."""

    @property
    def differs(self) -> bool:
        """Whether the listing is not what it should be, or somebody answered who should not."""
        return bool(self.drift) or any(one.verdict in WRONG for one in self.answered)

    @property
    def broken(self) -> bool:
        """Whether it could not be read back, or a request failed."""
        return self.unreachable is not None or bool(self.failed)


class Verification(msgspec.Struct, frozen=True, kw_only=True):
    """Some proxies at one moment."""

    fleet: str
    sequence: int
    """Of the log: what was folded."""
    time: str
    proxies: tuple[ProxyVerification, ...]
    notes: tuple[str, ...] = ()


class Belonging(msgspec.Struct, frozen=True):
    """How every worker stood at one proxy at one moment: the life, and why it does not belong; None if it does."""

    workers: dict[str, tuple[int, Verdict, str | None]]

    @classmethod
    def of(cls, roster: Roster, policy: Policy, served: ProxyPolicy) -> Belonging:
        """As it is now."""
        found: dict[str, tuple[int, Verdict, str | None]] = {}
        for name, worker in roster.workers.items():
            held = gates.standing(roster, policy, served, name)
            verdict = Verdict.RIGHT
            if held is not None:
                over = worker.phase in {Phase.DOWN, Phase.RETIRED} or roster.ended
                verdict = Verdict.DEAD if over else Verdict.UNWANTED
            found[name] = (worker.incarnation, verdict, None if held is None else str(held))
        return cls(found)

    def judge(self, who: Who) -> tuple[Verdict, str | None]:
        """About one that answered."""
        if who.worker is None or who.worker not in self.workers:
            return Verdict.FOREIGN, f"no worker of this fleet is {who.said!r}"
        current, verdict, reason = self.workers[who.worker]
        if who.incarnation is not None and who.incarnation < current:
            return Verdict.DEAD, f"superseded by incarnation {current}"
        if who.incarnation is not None and who.incarnation > current:
            return Verdict.RIGHT, None  # the log hears of it in a moment: a life is numbered there
        return verdict, reason


def identify(
    headers: Mapping[str, str], body: Mapping[str, object] | None, identities: Mapping[str, Identity]
) -> Who | None:
    """Who says to have answered. `headers` by lower-case name; `identities` as the provider has them, by worker."""
    for header in dict.fromkeys(one.header.lower() for one in identities.values() if one.header is not None):
        said = headers.get(header)
        if said is not None:
            return _by_identity(header, said, identities)
    name, life = headers.get(WORKER_HEADER.lower()), headers.get(INCARNATION_HEADER.lower())
    if name is None and body is not None:
        worker, incarnation = body.get("worker"), body.get("incarnation")
        name = worker if isinstance(worker, str) else None
        life = str(incarnation) if isinstance(incarnation, int) else None
    if name is None:
        return None
    name = _shown(name)
    return Who(name, int(life) if life is not None and _LIFE.fullmatch(life) else None, name)


def _shown(said: str) -> str:
    """What can be shown and sent of it: a header may hold bytes that are no text."""
    return said[:LONGEST_SAID].encode(errors="replace").decode()


def _by_identity(header: str, said: str, identities: Mapping[str, Identity]) -> Who:
    for worker, identity in identities.items():
        if identity.header is not None and identity.header.lower() == header and identity.value == said:
            return Who(worker, None, _shown(said))
    return Who(None, None, _shown(said))


def answerers(answers: Sequence[Who | None], before: Belonging, after: Belonging) -> tuple[Answerer, ...]:
    """Those who answered, judged; the wrong ones first. `answers` has one for each request that was answered."""
    counted = Counter(answers)
    found: list[Answerer] = []
    for who, requests in counted.items():
        if who is None:
            found.append(
                Answerer(worker=None, incarnation=None, requests=requests, verdict=Verdict.UNKNOWN, how="not known")
            )
            continue
        (verdict, reason), (then, _) = after.judge(who), before.judge(who)
        if then not in WRONG:
            verdict, reason = then, None
        found.append(
            Answerer(
                worker=who.worker or who.said,
                incarnation=who.incarnation,
                requests=requests,
                verdict=verdict,
                how="said so",
                reason=reason,
            )
        )
    return _sorted(found)


def with_counts(
    found: Sequence[Answerer], counts: Mapping[str, tuple[int, int]], before: Belonging, after: Belonging
) -> tuple[Answerer, ...]:
    """The same, where nobody says who he is: workers were seen to count so many requests more, by (life, requests).

    Requests of others are among them, so no more are told apart than were sent.
    """
    unknown = sum(one.requests for one in found if one.verdict is Verdict.UNKNOWN)
    told = [one for one in found if one.verdict is not Verdict.UNKNOWN]
    for worker, (incarnation, requests) in counts.items():
        seen = min(requests, unknown)
        if seen <= 0:
            continue
        unknown -= seen
        [judged] = answerers([Who(worker, incarnation, worker)], before, after)
        told.append(msgspec.structs.replace(judged, requests=seen, how="counted"))
    if unknown:
        told.append(Answerer(worker=None, incarnation=None, requests=unknown, verdict=Verdict.UNKNOWN, how="not known"))
    return _sorted(told)


def _sorted(found: Iterable[Answerer]) -> tuple[Answerer, ...]:
    return tuple(sorted(found, key=lambda one: (one.verdict not in WRONG, one.worker or "~", one.incarnation or 0)))
