"""The fenced writer of one proxy's subject: intents and outcomes go into the log one after the other, or not at all.

Every append expects the subject's last sequence to be the one that this writer left there. So a deposed controller's
append is refused by the server [I7], and nothing is written out of turn. A refusal alone deposes nobody: garbage on the
subject causes one too [I9]; only a LeadershipTaken of a higher epoch that the fold has seen does. Nothing is appended
once the lease is over, so a controller that was stopped and wakes up does not take a proxy back from its successor.
Facts that arrive while an append is under way go together in the next one (intents of many workers become one atomic
batch).
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec

from rollbook.events import Codec, Draft, Fact, LeadershipTaken
from rollbook.events.subjects import proxy_subject
from rollbook.events.times import rfc3339
from rollbook.projections.ending import end
from rollbook.projections.log.authority import Authority, Deposed
from rollbook.projections.log.projector import Projector
from rollbook.projections.ports import AppendConflict, LogUnavailable
from rollbook.projections.resources import Resources

MOST_IN_A_BATCH: Final = 500
RETRY_SECONDS: Final = 0.2


class _Waiting(msgspec.Struct, gc=False):
    drafts: list[Draft]
    done: asyncio.Future[list[int]]


class FencedWriter:
    """Appends to one proxy's subject. Use it from one event loop."""

    def __init__(self, proxy: str, fleet: str, projector: Projector, resources: Resources) -> None:
        self._proxy = proxy
        self._projector = projector
        self._log = resources.log
        self._clock = resources.clock
        self._ids = resources.ids
        self._publisher = resources.owner
        self._authority = Authority(resources.leadership, fleet)
        self._codec = Codec(fleet)
        self._subject = proxy_subject(fleet, proxy)
        self._leader = ("", 0)
        self._last = 0
        self._queue: list[_Waiting] = []
        self._writing: asyncio.Task[None] | None = None

    async def take_over(self, owner: str, epoch: int) -> int:
        """Become the subject's only writer: move its sequence, so that whoever wrote before is refused.

        Returns the sequence of the LeadershipTaken. Raises `Deposed` if a higher epoch stands there, `LeadershipLost`.
        """
        self._leader = (owner, epoch)
        draft = self._draft(LeadershipTaken(proxy=self._proxy, owner=owner, epoch=epoch))
        while True:
            try:
                last = await self._log.last(self._subject)
                self._last = 0 if last is None else last.sequence
                # Who outranks us is asked of the fold, at the very sequence that the append expects.
                await self._projector.passed(self._last)
                self._stand_down_if_outranked()
                self._authority.require()
                [self._last] = await self._log.append([draft], expect={self._subject: self._last})
            except AppendConflict:
                continue
            except LogUnavailable:
                await self._clock.sleep(RETRY_SECONDS)
                continue
            return self._last

    def _stand_down_if_outranked(self) -> None:
        record = self._projector.state.ledger.look(self._proxy)
        owner, epoch = self._leader
        if record.epoch > epoch or (record.epoch == epoch and record.owner != owner):
            raise Deposed(self._proxy, record.owner)

    async def write(self, *facts: Fact) -> int:
        """Append the facts in order and return the last one's sequence. Waits as long as the log does not answer.

        Raises `Deposed` if another controller has taken over, `LeadershipLost` if the lease is over.
        """
        waiting = _Waiting([self._draft(fact) for fact in facts], asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._drain())
        return (await waiting.done)[-1]

    def _draft(self, fact: Fact) -> Draft:
        return self._codec.draft(fact, id=self._ids.new(), time=rfc3339(self._clock.now()), publisher=self._publisher)

    async def _drain(self) -> None:
        while self._queue:
            batch: list[_Waiting] = []
            size = 0
            while self._queue and size + len(self._queue[0].drafts) <= MOST_IN_A_BATCH:
                size += len(self._queue[0].drafts)
                batch.append(self._queue.pop(0))
            try:
                sequences = await self._append([draft for waiting in batch for draft in waiting.drafts])
            except Exception as exc:  # noqa: BLE001 - not swallowed: handed to everyone who waits
                for waiting in (*batch, *self._queue):
                    if not waiting.done.done():
                        waiting.done.set_exception(exc)
                self._queue.clear()
                return
            at = 0
            for waiting in batch:
                if not waiting.done.done():
                    waiting.done.set_result(sequences[at : at + len(waiting.drafts)])
                at += len(waiting.drafts)

    async def _append(self, drafts: list[Draft]) -> list[int]:
        while True:
            # Also of who was refused before: by then it knows the successor's sequence, and the log believes it.
            self._stand_down_if_outranked()
            self._authority.require()
            try:
                sequences = await self._log.append(drafts, expect={self._subject: self._last})
            except LogUnavailable:
                await self._clock.sleep(RETRY_SECONDS)
                continue
            except AppendConflict:
                await self._look_up()
                continue
            self._last = sequences[-1]
            return sequences

    async def _look_up(self) -> None:
        """Something that this writer did not write stands on the subject. Raises `Deposed` if that is a takeover."""
        try:
            last = await self._log.last(self._subject)
        except LogUnavailable:
            await self._clock.sleep(RETRY_SECONDS)
            return
        self._last = 0 if last is None else last.sequence
        await self._projector.passed(self._last)
        self._stand_down_if_outranked()

    async def close(self) -> None:
        """Stop writing; what has not been appended is not."""
        if self._writing is not None:
            await end(self._writing)
