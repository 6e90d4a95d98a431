"""Reads what the story of one worker needs, by its subjects, and has it told."""

from __future__ import annotations

import difflib
from collections.abc import AsyncGenerator, Sequence

from rollbook.events import (
    CellDeclared,
    Codec,
    Recorded,
    RegistrationFact,
    RollbookError,
    Undecodable,
    WorkerFact,
    parse_worker,
)
from rollbook.events.subjects import operator_worker_subject, proxy_subject, worker_subject
from rollbook.projections.fold import State, restore
from rollbook.projections.history.moments import state_at
from rollbook.projections.history.narrative import Narrative
from rollbook.projections.history.past import Past
from rollbook.projections.history.teller import Teller
from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.ports import HistoryHole, Stored


class UnknownToTheLog(RollbookError):
    """The log says nothing of a worker or proxy of that name."""


async def explain(past: Past, codec: Codec, policy: Policy, worker: str, proxy: str | None, to: int) -> Narrative:
    """The story of `worker`, at all proxies that serve it or at one, up to sequence `to`.

    Raises `UnknownToTheLog`, `HistoryHole`.
    """
    if proxy is not None and proxy not in policy.proxies:
        known = ", ".join(policy.proxies) or "none"
        raise UnknownToTheLog(f"there is no proxy {proxy!r} in fleet {policy.fleet!r}; known are: {known}")
    begin, _ = await past.ends()
    start, state = await _beginning(past, begin, to)
    notes: tuple[str, ...] = ()
    if start > 1:
        notes = (f"told from sequence {start} on: what is older was archived, and --archive reads it",)
    teller = Teller(codec.fleet, policy, worker, proxy, state.roster)
    siblings = await _siblings(past, codec, worker, start, to)
    async for stored, recorded in _about(past, codec, [worker, *siblings], worker, proxy, (start, to)):
        teller.take(stored, recorded)
    narrative = teller.tell(to, notes)
    if not teller.heard:
        raise UnknownToTheLog(await _nobody(past, codec, worker, to))
    return narrative


async def policy_for(past: Past, codec: Codec, worker: str, to: int) -> Policy:
    """What the log shows of the configuration, for one worker: proxies that it was ever brought to serve its pool."""
    begin, _ = await past.ends()
    state = await state_at(past, codec, to)
    known = state.roster.workers.get(worker)
    pool = parse_worker(worker).pool if known is None else known.pool
    served = {
        recorded.fact.proxy
        async for _, recorded in _recorded(past, codec, begin, to, [f"rollbook.{codec.fleet}.proxy.*"], worker)
        if isinstance(recorded.fact, RegistrationFact) and recorded.fact.worker == worker
    }
    proxies = {
        name: ProxyPolicy(name=name, pools=(pool,) if name in served and pool is not None else ())
        for name in [*state.ledger.proxies, *served]
    }
    return Policy(fleet=codec.fleet, pools={}, proxies=proxies)


async def _beginning(past: Past, begin: int, to: int) -> tuple[int, State]:
    """Where to begin: at the first sequence there ever was, or after the oldest state that was kept."""
    if begin == 1:
        return 1, State()
    oldest: State | None = None
    async for snapshot in past.snapshots():
        if begin - 1 <= snapshot.sequence <= to and (state := restore(snapshot)) is not None:
            oldest = state
    if oldest is None:
        raise HistoryHole(1, f"it begins at {begin}, and no state before {to} was kept")
    return oldest.sequence + 1, oldest


async def _siblings(past: Past, codec: Codec, worker: str, first: int, to: int) -> list[str]:
    """The other workers of its cell, where it is one of several: their facts open and close its gates, too."""
    several = False
    subjects = [worker_subject(codec.fleet, worker), f"rollbook.{codec.fleet}.fleet"]
    async for _, recorded in _recorded(past, codec, first, to, subjects):
        fact = recorded.fact
        if (isinstance(fact, WorkerFact) and fact.cell_size > 1) or (isinstance(fact, CellDeclared) and fact.size > 1):
            several = True
            break
    if not several:
        return []
    roster = (await state_at(past, codec, to)).roster
    known = roster.workers.get(worker)
    return [] if known is None else [name for name in roster.siblings(known) if name != worker]


async def _about(
    past: Past, codec: Codec, workers: Sequence[str], worker: str, proxy: str | None, span: tuple[int, int]
) -> AsyncGenerator[tuple[Stored, Recorded]]:
    root = f"rollbook.{codec.fleet}"
    subjects = [subject(codec.fleet, name) for name in workers for subject in (worker_subject, operator_worker_subject)]
    subjects += [f"{root}.fleet", f"{root}.operator.fleet", f"{root}.operator.proxy.*"]
    subjects.append(f"{root}.proxy.*" if proxy is None else proxy_subject(codec.fleet, proxy))
    async for stored, recorded in _recorded(past, codec, *span, subjects, worker):
        yield stored, recorded


async def _recorded(
    past: Past, codec: Codec, first: int, to: int, subjects: Sequence[str], worker: str | None = None
) -> AsyncGenerator[tuple[Stored, Recorded]]:
    """The facts on some subjects; with `worker`, registrations of others are not even decoded: they are the most."""
    name = b"" if worker is None else f'"{worker}"'.encode()
    proxies = f"rollbook.{codec.fleet}.proxy."
    async for batch in past.read(first, to, subjects):
        for stored in batch:
            payload = stored.payload
            if name and stored.subject.startswith(proxies) and b'"worker"' in payload and name not in payload:
                continue
            try:
                yield stored, codec.decode(payload, subject=stored.subject, sequence=stored.sequence)
            except Undecodable:
                continue


async def _nobody(past: Past, codec: Codec, worker: str, to: int) -> str:
    names = list((await state_at(past, codec, to)).roster.workers)
    near = difflib.get_close_matches(worker, names, n=1)
    hint = f"did you mean {near[0]}?" if near else "`rollbook status` lists the workers that it knows"
    return f"up to sequence {to} the log says nothing of a worker {worker!r}; {hint}"
