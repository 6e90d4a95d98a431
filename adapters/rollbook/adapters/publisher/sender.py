"""The publisher's own thread: one event loop, one connection to NATS, and every fact on its way.

Nothing here runs on a caller's thread except the constructor and the methods of the first group.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import random
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

import msgspec
import structlog

from rollbook.adapters.jetstream.connection import Connection
from rollbook.adapters.publisher.delivery import Delivery
from rollbook.adapters.publisher.entry import Entry, Fence
from rollbook.adapters.publisher.errors import IncarnationUnknown, NotSent, PublisherClosed
from rollbook.adapters.publisher.intake import Intake
from rollbook.adapters.publisher.lanes import Lanes
from rollbook.adapters.publisher.life import Leased
from rollbook.adapters.publisher.link import ASK_WITHIN, Link
from rollbook.adapters.publisher.memory import Memory
from rollbook.adapters.publisher.questions import Questions
from rollbook.adapters.publisher.reader import Reader
from rollbook.adapters.publisher.receipt import Flushed, Superseded, Unsent
from rollbook.adapters.publisher.renewals import renew
from rollbook.adapters.publisher.store import Store
from rollbook.adapters.publisher.wire import Answer
from rollbook.events import Codec, RollbookError
from rollbook.projections.ending import end
from rollbook.projections.ports import LogError, LogUnavailable

_log = structlog.get_logger(__name__)
T = TypeVar("T")

WINDOW: Final = 256
"""Facts in flight at a time, each of another subject."""
_REMIND: Final = 30.0
"""Seconds between two log lines about the same interruption."""
_END_WITHIN: Final = 0.1
"""Seconds for what is on its way to be dropped; nats-py may lose a cancellation in a write that a server holds up."""
_CLOSE_WITHIN: Final = 5.0
"""Seconds for the connection to be closed in good order."""
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
"""Seconds until a fact is tried again: the first and the longest bound, with full jitter below it."""


class Counts(msgspec.Struct):
    """Written by the loop, read by anybody."""

    accepted: int = 0
    acknowledged: int = 0
    refused: int = 0
    superseded: int = 0


class Sender:
    """Takes entries in through `intake`, and settles every receipt."""

    def __init__(self, codec: Codec, publisher: str, connection: Connection, *, limit: int, store: Store) -> None:
        self.loop = asyncio.new_event_loop()
        try:
            self.intake = Intake(limit, self.loop, self._take_in)
        except OSError:
            self.loop.close()
            raise
        self.memory = Memory()
        self.counts = Counts()
        self.link = Link(
            connection, codec.fleet, publisher, on_connected=self._connected, on_trouble=self._note_trouble
        )
        self.trouble: str | None = None
        """What holds facts up at the moment, for people."""
        self.open: dict[int, Entry] = {}
        """What is accepted and has no end yet, in order of acceptance."""
        self._codec = codec
        self._store = store
        self._lanes: Lanes[Entry] = Lanes(WINDOW)
        reader = Reader(codec, self.link)
        self._delivery = Delivery(codec, publisher, reader=reader, memory=self.memory, link=self.link)
        self._keys = itertools.count(store.last_key + 1)
        self._wanted = asyncio.Event()
        self._changed = asyncio.Event()
        self._stopped = asyncio.Event()
        self._trouble_told = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._questions = Questions(self.loop)
        self._thread = threading.Thread(target=self._run, name="rollbook-publisher", daemon=True)

    # ------------------------------------------------------------ for the callers' threads

    def start(self) -> None:
        """Start the thread. It begins with what an earlier process left in the outbox."""
        for entry in self._store.left_behind():
            self.open[entry.key] = entry
            self._lanes.offer(entry.subject, entry)
        try:
            self._thread.start()
        except RuntimeError:
            self.loop.close()
            raise

    def renewing(self, leased: Callable[[], Sequence[Leased]]) -> None:
        """From now on, let hear of those."""
        self.submit(renew(self._codec.fleet, self.link, leased))

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run `work` on the loop. Its future ends in `PublisherClosed` if the thread ends first."""
        return self._questions.ask(work)

    def stop(self, timeout: float) -> Flushed:
        """Flush for at most `timeout` seconds, and wait until the thread has ended."""
        try:
            flushed = self.submit(self._flush_and_stop(timeout)).result()
        except PublisherClosed:  # it ended before its time, and said so
            flushed = Flushed(0, ())
        self._thread.join()
        return flushed

    # ------------------------------------------------------------ for the loop, asked from outside

    async def look(self, worker: str, timeout: float) -> Fence:
        """What is known about `worker` now. Waits for a connection. Raises `LogUnavailable` after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while not self.link.connected:
                    self._changed.clear()
                    await self._changed.wait()
                return await self._delivery.look(worker)
        except TimeoutError as exc:
            raise LogUnavailable(
                f"the log did not say within {timeout:g} s what it knows about {worker}: {self.trouble or 'no answer'}"
            ) from exc

    async def flush(self, timeout: float) -> Flushed:
        """Wait until everything accepted so far has met its end, at most `timeout` seconds."""
        self._take_in()
        asked = list(self.open.values())
        last = asked[-1].key if asked else 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while next(iter(self.open), last + 1) <= last:
                    self._changed.clear()
                    await self._changed.wait()
        sent = sum(isinstance(entry.outcome, int) for entry in asked)
        unsent = [self._unsent(entry) for entry in asked if not isinstance(entry.outcome, int | Superseded)]
        return Flushed(sent, tuple(unsent))

    async def _flush_and_stop(self, timeout: float) -> Flushed:
        flushed = await self.flush(timeout)
        self._stopped.set()
        return flushed

    def _unsent(self, entry: Entry) -> Unsent:
        if entry.outcome is not None:
            return entry.unsent(str(entry.outcome))
        return entry.unsent(self.trouble or "the log has not acknowledged it yet", kept=True)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
                runner.run(self._main())
        except Exception:  # noqa: BLE001 - whatever it is, no receipt may wait for ever
            _log.exception("publisher.thread.failed")
        finally:
            self.intake.end()
            self._questions.end()
            for entry in self.open.values() if not self._stopped.is_set() else ():
                # They stay open, and in the durable outbox: closing reports them.
                entry.receipt.settle(None, NotSent("the publisher's thread failed; this process's log says why"))

    async def _main(self) -> None:
        self.intake.attach()
        keeping, pumping = asyncio.create_task(self.link.keep()), asyncio.create_task(self._pump())
        try:
            stopped = asyncio.ensure_future(self._stopped.wait())
            await asyncio.wait({keeping, pumping, stopped}, return_when="FIRST_COMPLETED")
            for task in (keeping, pumping):
                if task.done():
                    task.result()
        finally:
            await end(pumping, *self._tasks, patience=_END_WITHIN)
            await end(keeping, patience=_CLOSE_WITHIN)

    async def _pump(self) -> None:
        while not self._stopped.is_set():
            await self._wanted.wait()
            self._wanted.clear()
            await self._send_what_may_go()

    def _take_in(self) -> None:
        """New facts: give each its place, and ask at once what must be asked at the moment of the call."""
        now, wall = time.monotonic(), time.time()
        for entry in self.intake.take():
            entry.enter(next(self._keys), self._codec.fleet, wall - (now - entry.called), self.memory.horizon)
            self.counts.accepted += 1
            self.open[entry.key] = entry
            self._lanes.offer(entry.subject, entry)
            if entry.ask:
                self._ask_now(entry)
            self._keep(entry)
        self._wanted.set()

    async def _send_what_may_go(self) -> None:
        while (
            not self._stopped.is_set()
            and self.link.connected
            and (entry := self._lanes.take(time.monotonic())) is not None
        ):
            now = time.monotonic()
            if entry.outcome is not None:
                self._lanes.settle(entry.subject)
            elif self._delivery.is_plain(entry, now):
                entry.begin_attempt(now)
                await self._send(entry)
            else:
                entry.begin_attempt(now)
                self._start(self._converse(entry))

    async def _send(self, entry: Entry) -> None:
        """The straight way: no task and no future per fact."""

        def answered(answer: Answer | LogUnavailable) -> bool:
            if not isinstance(answer, Answer):
                self._again(entry, answer)
                return True
            try:
                self._finish(entry, answer.acknowledged(entry.subject))
            except LogUnavailable as exc:
                self._again(entry, exc)
            return True

        try:
            draft = self._delivery.draft(entry)
            await self.link.wire().send(draft.subject, draft.payload, {"Nats-Msg-Id": draft.id}, answered)
        except LogUnavailable as exc:
            self._again(entry, exc)
        except RollbookError as exc:
            self._finish(entry, exc)

    async def _converse(self, entry: Entry) -> None:
        """The long way: what has to be numbered, fenced or looked up."""
        try:
            if entry.asking is not None:
                await entry.asking
            if entry.outcome is not None:
                self._finish(entry, entry.outcome)
            else:
                self._finish(entry, await self._delivery.deliver(entry))
        except LogUnavailable as exc:
            self._again(entry, exc)
        except RollbookError as exc:
            self._finish(entry, exc)
        except Exception as exc:  # noqa: BLE001 - one fact's failure must not hold up its lane for ever
            _log.exception("publisher.delivery.failed", fact=entry.what)
            self._finish(entry, NotSent(f"an error in the publisher: {exc!r}; please report it"))

    def _ask_now(self, entry: Entry) -> None:
        if self.link.connected:
            entry.asking = self._start(self._ask(entry))
        else:
            self._end(entry, IncarnationUnknown(f"{entry.what}: NATS was not connected at the call. {_GIVE_NUMBER}"))

    async def _ask(self, entry: Entry) -> None:
        left = entry.called + ASK_WITHIN - time.monotonic()
        try:
            async with asyncio.timeout(left):
                await self._delivery.ask(entry)
            self._keep(entry)
        except (TimeoutError, LogUnavailable) as exc:
            told = str(exc) or f"no answer within {ASK_WITHIN:g} s"
            self._end(entry, IncarnationUnknown(f"{entry.what}: {told}. {_GIVE_NUMBER}"))
        except RollbookError as exc:
            self._end(entry, exc)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ------------------------------------------------------------ what became of it

    def _finish(self, entry: Entry, outcome: int | Superseded | RollbookError) -> None:
        """The head of its lane has met its end: the next one may go."""
        if isinstance(outcome, int):
            self.memory.stored(entry, outcome)
            self._note_flowing()
        self._end(entry, outcome)
        self._lanes.settle(entry.subject)
        if entry.attempt is not None:  # it gave its life the number that others of that life wait for
            for waiting in self._lanes.lane(entry.subject):
                if waiting.life is entry.life:
                    self._keep(waiting)
        self._wanted.set()

    def _end(self, entry: Entry, outcome: int | Superseded | RollbookError) -> None:
        if self.open.pop(entry.key, None) is None:
            return
        entry.outcome = outcome
        match outcome:
            case int():
                self.counts.acknowledged += 1
                entry.receipt.settle(outcome)
            case Superseded():
                self.counts.superseded += 1
                entry.receipt.settle(outcome)
            case _:
                self.counts.refused += 1
                entry.receipt.settle(None, outcome)
                _log.warning("publisher.fact.unsent", id=entry.receipt.id, fact=entry.what, reason=str(outcome))
        self._store.forget(entry)
        if entry.recovered is None:
            self.intake.release()
        self._changed.set()

    def _again(self, entry: Entry, why: LogUnavailable) -> None:
        """No answer, or not now: the same fact goes again after a pause, and its lane waits for it."""
        self._note_trouble(why)
        bound = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(entry.attempts - 1, 10))
        pause = random.uniform(0, bound)  # noqa: S311 - jitter
        self._lanes.give_back(entry.subject, time.monotonic() + pause)
        self.loop.call_later(pause, self._wanted.set)

    def _keep(self, entry: Entry) -> None:
        if entry.outcome is None:
            self._store.keep(entry, self._delivery)

    # ------------------------------------------------------------ the connection

    def _connected(self) -> None:
        self._lanes.hurry()
        self._wanted.set()
        self._changed.set()

    def _note_trouble(self, trouble: LogError) -> None:
        now = time.monotonic()
        if self.trouble is None or now - self._trouble_told > _REMIND:
            self._trouble_told = now
            _log.warning("publisher.held_up", reason=str(trouble), waiting=len(self.open))
        self.trouble = str(trouble)

    def _note_flowing(self) -> None:
        if self.trouble is not None:
            self.trouble = None
            _log.info("publisher.flowing", waiting=len(self.open))


_GIVE_NUMBER: Final = "It is not kept for later, when another life may be the current one; pass `incarnation`"
