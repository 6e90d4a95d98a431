"""Reads what the story of one worker needs, by its subjects, and has it told.

The proxies' subjects hold every worker's registrations, so they are not read: the ledger notes where the last facts
stand that name a worker, and those are fetched. What is older than its notes is read, from the worker's first fact on
(or from the first of the lives that are asked for), and what does not name the worker is not decoded.
"""

from __future__ import annotations

import difflib
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence

import msgspec

from rollbook.events import Codec, Recorded, RollbookError, Undecodable, WorkerFact
from rollbook.events.subjects import covers, operator_worker_subject, proxy_subject, worker_subject
from rollbook.projections.history.filters import may_name
from rollbook.projections.history.moments import state_at
from rollbook.projections.history.narrative import Narrative
from rollbook.projections.history.past import Past
from rollbook.projections.history.teller import Teller
from rollbook.projections.looking.logonly import policy_of
from rollbook.projections.policy import Policy
from rollbook.projections.ports import HistoryHole, Snapshot, Stored
from rollbook.projections.state.fold import SCHEMA, State, restore
from rollbook.projections.state.ledger import MOST_NOTED


class UnknownToTheLog(RollbookError):
    """The log says nothing of a worker or proxy of that name."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Whose story, and how much of it."""

    worker: str
    proxy: str | None = None
    """None: at all proxies that serve it."""
    to: int
    """The last sequence."""
    lives: int | None = None
    """Only so many, the newest; None: all."""
    policy: Policy | None = None
    """None: the proxies are those that the log shows it at."""


class _Known(msgspec.Struct):
    """What the worker's own subject says, before anything else is read."""

    first: int
    """Where its story begins; one past the end if nothing was said about it."""
    several: bool
    """Whether its cell has other workers."""


async def explain(past: Past, codec: Codec, asked: Asked) -> Narrative:
    """The story of one worker. Raises `UnknownToTheLog`, `HistoryHole`."""
    if asked.proxy is not None and asked.policy is not None and asked.proxy not in asked.policy.proxies:
        known = ", ".join(asked.policy.proxies) or "none"
        raise UnknownToTheLog(f"there is no proxy {asked.proxy!r} in fleet {codec.fleet!r}; known are: {known}")
    begin, _ = await past.ends()
    own = await _own_subject(past, codec, asked, begin)
    end = await state_at(past, codec, asked.to)
    teller = await _tell(past, codec, asked, own, end, several=own.several)
    if teller.in_a_cell_of_several and not own.several:
        teller = await _tell(past, codec, asked, own, end, several=True)
    if not teller.heard:
        raise UnknownToTheLog(_nobody(end, asked))
    if asked.policy is None and not teller.proxies:
        # It was never brought to a proxy, so only the others of its pool show where it would belong.
        policy = policy_of(codec.fleet, end)
        return await explain(past, codec, msgspec.structs.replace(asked, policy=policy))
    start, _ = await _beginning(past, begin, asked.to)
    notes = (f"told from sequence {start} on: what is older was archived, and --archive reads it",) if start > 1 else ()
    return teller.tell(asked.to, (*notes, *_restarts_elsewhere(end, asked.worker)), asked.lives)


def _restarts_elsewhere(end: State, name: str) -> tuple[str, ...]:
    """Where to read why its cell was restarted: claims and attempts stand on the subject of one worker of it."""
    worker = end.roster.workers.get(name)
    if worker is None or worker.restarts is not None:
        return ()
    told = [other for other in end.roster.siblings(worker) if end.roster.workers[other].restarts is not None]
    return tuple(f"its cell was restarted as one: who did, and why, `rollbook explain {other}` says" for other in told)


async def _tell(past: Past, codec: Codec, asked: Asked, own: _Known, end: State, *, several: bool) -> Teller:
    """`end` is the state at the end of the story; it says what else is to be read."""
    begin, _ = await past.ends()
    start, state = await _beginning(past, begin, asked.to)
    others = [*(_siblings(end, asked) if several else []), *_partners(end, asked)]
    teller = Teller(codec.fleet, asked.policy, asked.worker, asked.proxy, state.roster)
    root = f"rollbook.{codec.fleet}"
    subjects = [f"{root}.fleet", f"{root}.operator.fleet", f"{root}.operator.proxy.*"]
    for name in (asked.worker, *others):
        subjects += [worker_subject(codec.fleet, name), operator_worker_subject(codec.fleet, name)]
    proxies = f"{root}.proxy.*" if asked.proxy is None else proxy_subject(codec.fleet, asked.proxy)
    cut = max(start, min(own.first, asked.to + 1))
    noted = _noted(end, asked, cut)
    async for stored, recorded in _recorded(past, codec, start, cut - 1, subjects):
        teller.take(stored, recorded)
    async for stored, recorded in _recorded(past, codec, cut, noted.since - 1, [*subjects, proxies], asked.worker):
        teller.take(stored, recorded)
    rest = [pair async for pair in _recorded(past, codec, noted.since, asked.to, subjects)]
    rest += [pair for pair in _decoded(codec, await past.at(noted.sequences)) if covers([proxies], pair[0].subject)]
    for stored, recorded in sorted(rest, key=lambda pair: pair[0].sequence):
        teller.take(stored, recorded)
    return teller


class _Noted(msgspec.Struct, frozen=True):
    """What the ledger knows of where a worker's story stands on the proxies' subjects."""

    since: int
    """It knows all from here on."""
    sequences: list[int]


def _noted(end: State, asked: Asked, cut: int) -> _Noted:
    named = end.ledger.named
    since = cut
    for name in (asked.worker, ""):
        if len(sequences := named.get(name, [])) == MOST_NOTED:
            since = max(since, sequences[0])
    found = {sequence for name in (asked.worker, "") for sequence in named.get(name, []) if sequence >= since}
    return _Noted(since, sorted(found))


async def _beginning(past: Past, begin: int, to: int) -> tuple[int, State]:
    """Where to begin: at the first sequence there ever was, or after the oldest state that was kept."""
    if begin == 1:
        return 1, State()
    kept: Snapshot | None = None
    async for snapshot in past.snapshots(to):
        if begin - 1 <= snapshot.sequence and snapshot.schema == SCHEMA:
            kept = snapshot
    oldest = None if kept is None else restore(kept)
    if oldest is None:
        raise HistoryHole(1, f"it begins at {begin}, and no state before {to} was kept")
    return oldest.sequence + 1, oldest


async def _own_subject(past: Past, codec: Codec, asked: Asked, begin: int) -> _Known:
    began: dict[int, int] = {}
    known = _Known(asked.to + 1, several=False)
    async for _, recorded in _recorded(past, codec, begin, asked.to, [worker_subject(codec.fleet, asked.worker)]):
        fact = recorded.fact
        if isinstance(fact, WorkerFact):
            began.setdefault(fact.incarnation, recorded.sequence)
            known.several = known.several or fact.cell_size > 1
    if began:
        wanted = sorted(began)[-asked.lives :] if asked.lives is not None else sorted(began)
        known.first = min(began[incarnation] for incarnation in wanted)
    return known


def _siblings(end: State, asked: Asked) -> list[str]:
    """The other workers of its cell: their facts open and close its gates, too."""
    roster = end.roster
    known = roster.workers.get(asked.worker)
    return [] if known is None else [name for name in roster.siblings(known) if name != asked.worker]


def _partners(end: State, asked: Asked) -> list[str]:
    """The workers of the pool without which it is not added anywhere, where the configuration pairs the two."""
    known = end.roster.workers.get(asked.worker)
    partner = None if known is None or asked.policy is None else asked.policy.partner(known.pool)
    if partner is None:
        return []
    return [worker.name for worker in end.roster.workers.values() if worker.pool == partner]


async def _recorded(
    past: Past, codec: Codec, first: int, to: int, subjects: Sequence[str], worker: str | None = None
) -> AsyncGenerator[tuple[Stored, Recorded]]:
    """The facts on some subjects; with `worker`, registrations of others are not even decoded: they are the most."""
    if first > to:
        return
    proxies = f"rollbook.{codec.fleet}.proxy."

    def concerns(stored: Stored) -> bool:
        of_others = stored.subject.startswith(proxies) and b'"worker"' in stored.payload
        return worker is None or not of_others or may_name(stored.payload, worker)

    async for batch in past.read(first, to, subjects):
        for pair in _decoded(codec, filter(concerns, batch)):
            yield pair


def _decoded(codec: Codec, messages: Iterable[Stored]) -> Iterator[tuple[Stored, Recorded]]:
    """Those that are facts."""
    for stored in messages:
        try:
            yield stored, codec.decode(stored.payload, subject=stored.subject, sequence=stored.sequence)
        except Undecodable:
            continue


def _nobody(end: State, asked: Asked) -> str:
    names = list(end.roster.workers)
    near = difflib.get_close_matches(asked.worker, names, n=1)
    hint = f"did you mean {near[0]}?" if near else "`rollbook status` lists the workers that it knows"
    return f"up to sequence {asked.to} the log says nothing of a worker {asked.worker!r}; {hint}"
