"""History for programs and notebooks: `async with open_history(url, fleet) as history`.

Reads the fleet's log and, where one is named, the archive of what was moved out of it. Writes nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rollbook.adapters.bootstrap import Reader, open_reader
from rollbook.adapters.jetstream.connection import Connection
from rollbook.events import Codec, Recorded, Undecodable, type_of
from rollbook.events.subjects import entity_of
from rollbook.events.times import rfc3339
from rollbook.projections.history import difference, replay, story
from rollbook.projections.history.difference import Difference
from rollbook.projections.history.filters import Filter, places_of
from rollbook.projections.history.moments import (
    Moment,
    NoSuchMoment,
    first_folded,
    first_from,
    parse_moment,
    sequence_of,
    state_at,
)
from rollbook.projections.history.narrative import Narrative
from rollbook.projections.history.past import JoinedPast, LogPast, Past
from rollbook.projections.history.recoveries import Recovery, recoveries
from rollbook.projections.history.replay import Replayed
from rollbook.projections.history.timeline import Timeline, timeline
from rollbook.projections.history.view import FleetThen, view
from rollbook.projections.policy import Policy
from rollbook.projections.ports import Stored
from rollbook.projections.state.fold import State, message_id

if TYPE_CHECKING:
    from rollbook.adapters.archive.folder import ArchivePast

When = int | str | datetime | Moment
"""A sequence, a time with its zone, or as on the command line: `"4711"`, `"-15m"`, `"now"`, an RFC 3339 time."""


class History:
    """All that a fleet's log says of the past. Every method reads anew, and raises `LogUnavailable` if it cannot.

    A moment that the log does not have raises `NoSuchMoment`, and what is gone from it `HistoryHole`.
    """

    def __init__(self, fleet: str, past: Past) -> None:
        self.fleet = fleet
        self.past = past
        self.codec = Codec(fleet)

    async def sequence(self, when: When) -> int:
        """The last sequence at that moment."""
        return await sequence_of(self.past, _moment(when))

    async def stored_at(self, sequence: int) -> float | None:
        """When it was stored, seconds since the epoch by the log's clock; None if it is not there."""
        first, last = await self.past.ends()
        if first <= sequence <= last:
            async for batch in self.past.read(sequence, sequence):
                return batch[0].stored_at
        return None

    async def state(self, when: When = "now") -> State:
        """The fold at that moment: roster and ledger. A copy of the caller's own."""
        return await state_at(self.past, self.codec, await self.sequence(when))

    async def at(self, when: When = "now") -> FleetThen:
        """The roster and every proxy's registrations as they were."""
        state = await self.state(when)
        stored_at = await self.stored_at(state.sequence)
        return view(self.fleet, state, "" if stored_at is None else rfc3339(stored_at))

    async def between(self, first: When, second: When) -> Difference:
        """What changed between two moments, with the facts that did it."""
        return await difference.between(self.past, self.codec, await self.sequence(first), await self.sequence(second))

    async def explain(
        self,
        worker: str,
        *,
        proxy: str | None = None,
        at: When = "now",
        lives: int | None = None,
        policy: Policy | None = None,
    ) -> Narrative:
        """The story of one worker up to a moment, or the newest `lives` of it.

        Without a policy, the proxies are those that the log shows it at. Raises `UnknownToTheLog`.
        """
        to = await self.sequence(at)
        asked = story.Asked(worker=worker, proxy=proxy, to=to, lives=lives, policy=policy)
        return await story.explain(self.past, self.codec, asked)

    async def stored(
        self, since: When | None = None, until: When = "now", wanted: Filter | None = None
    ) -> AsyncGenerator[tuple[Stored, Recorded]]:
        """Facts with their messages, in order, from `since` (the beginning by default); messages that are none are not.

        `wanted` is asked of the server as far as subjects allow.
        """
        to = await self.sequence(until)
        first = (await self.past.ends())[0] if since is None else await first_from(self.past, _moment(since))
        chosen = wanted or Filter()
        if chosen.pool is not None or chosen.cell is not None:
            places = places_of(await state_at(self.past, self.codec, to))
            chosen = msgspec.structs.replace(chosen, places=places)
        subjects = chosen.subjects(self.fleet)
        if subjects is None:
            return
        async for batch in self.past.read(first, to, subjects):
            for one in batch:
                if not chosen.may_admit(one.payload):
                    continue
                try:
                    recorded = self.codec.decode(one.payload, subject=one.subject, sequence=one.sequence)
                except Undecodable:
                    continue
                if chosen.admits(recorded):
                    yield one, recorded

    async def facts(
        self, since: When | None = None, until: When = "now", wanted: Filter | None = None
    ) -> AsyncGenerator[Recorded]:
        """The facts, in order. As `stored`, without the messages."""
        async for _, recorded in self.stored(since, until, wanted):
            yield recorded

    async def rows(
        self, since: When | None = None, until: When = "now", wanted: Filter | None = None
    ) -> list[dict[str, Any]]:
        """The facts as flat rows for a data frame.

        Columns: `sequence`, `stored_at` (a datetime, UTC), `type`, `about`, `source`, `worker`, `proxy`,
        `incarnation`, `evidence`, `reason`, `url`, `cause`; None where a fact has no such field.
        """
        return [_row(stored, recorded) async for stored, recorded in self.stored(since, until, wanted)]

    async def recoveries(self, since: When | None = None, until: When = "now") -> list[Recovery]:
        """Every time that a worker went down and was registered again, by proxy."""
        first = await self._first_folded(since)
        return await recoveries(self.past, self.codec, first, await self.sequence(until))

    async def timeline(self, since: When | None = None, until: When | None = None) -> Timeline:
        """Phases, registrations and marks over time, as data; `adapters.drawing.draw` makes a picture of it."""
        _, last = await self.past.ends()
        to = last if until is None else await self.sequence(until)
        return await timeline(self.past, self.codec, await self._first_folded(since), to)

    async def replay(self, until: When = "now", *, check: bool = True) -> Replayed:
        """Fold anew and compare with every snapshot on the way."""
        found, _ = await replay.replay(self.past, self.codec, await self.sequence(until), check=check)
        return found

    async def _first_folded(self, since: When | None) -> int:
        """The first sequence of a range before which the state is known."""
        return await first_folded(self.past, None if since is None else _moment(since))


@contextlib.asynccontextmanager
async def open_history(
    url: str | Connection, fleet: str, *, archive: str | Path | None = None
) -> AsyncGenerator[History]:
    """The history of `fleet`, from the NATS server at `url` and from `archive`: a folder of archives, or one file.

    Raises `LogError` if the server cannot be reached or has no log of this fleet, `ArchiveError` for a bad archive.
    """
    connection = Connection(url=url) if isinstance(url, str) else url
    async with open_reader(fleet, connection) as reader:
        yield History(fleet, await past_of(reader, fleet, archive))


async def past_of(reader: Reader, fleet: str, archive: str | Path | None) -> Past:
    """What there is to read: the log, with the archive before it.

    Raises `ArchiveError`, also for an archive of another log of the same name.
    """
    live = LogPast(reader.log, reader.snapshots)
    if archive is None:
        return live
    from rollbook.adapters.archive.folder import ArchivePast

    older = ArchivePast.open(Path(archive), fleet)
    if older.files and older.files[-1].head.identity != (await live.state()).identity:
        await _refuse_another_log(older, live, archive)
    return JoinedPast(older, live)


async def _refuse_another_log(older: ArchivePast, live: LogPast, archive: str | Path) -> None:
    """A log that was made from an archive is another stream than the archive's, and holds the same."""
    from rollbook.adapters.archive.errors import ArchiveError

    _, archived = await older.ends()
    last = (await live.state()).last_sequence
    problem = f"the log ends at {last}, and the archive at {archived}" if archived > last else None
    if problem is None and (stored := await live.at([archived])):
        found = await older.at([archived])
        if [message_id(one) for one in found] != [message_id(one) for one in stored]:
            problem = f"sequence {archived} is another message in the log"
    if problem is not None:
        raise ArchiveError(
            f"{archive} is an archive of another log of this fleet than the server's: {problem}. Name the folder that "
            "this log was archived into, or leave --archive out"
        )


def _moment(when: object) -> Moment:
    """A `When`; in a notebook it may be anything. Raises `NoSuchMoment`."""
    match when:
        case int():
            if when < 0:
                raise NoSuchMoment(f"there is no sequence {when}: the first is 1, and 0 is before it")
            return Moment(sequence=when)
        case str():
            return parse_moment(when, time.time())
        case datetime():
            if when.tzinfo is None:
                raise NoSuchMoment(f"{when} has no time zone: add one, such as tzinfo=datetime.UTC")
            return Moment(time=when.timestamp())
        case Moment():
            return when
        case _:
            raise NoSuchMoment(
                f"{when!r} is no moment: give a sequence, a datetime with its zone, or a text such as '-15m'"
            )


def _row(stored: Stored, recorded: Recorded) -> dict[str, Any]:
    fact = recorded.fact
    columns = ("worker", "proxy", "incarnation", "evidence", "reason", "url", "cause")
    return {
        "sequence": stored.sequence,
        "stored_at": datetime.fromtimestamp(stored.stored_at, tz=UTC),
        "type": type_of(fact),
        "about": entity_of(fact),
        "source": recorded.source,
        **{column: getattr(fact, column, None) for column in columns},
    }


__all__ = ["History", "open_history", "past_of"]
