"""History on a real server: read by subjects, exported, imported, archived, and still the same [I5]."""

import asyncio
import contextlib
import datetime as dt

import msgspec
import pytest
from support.histories import a_history
from support.nats import DEADLINE
from support.past import told

from rollbook.adapters.archive import importing, trimming
from rollbook.adapters.archive.errors import ArchiveError, DamagedArchive
from rollbook.adapters.archive.folder import ArchivePast, file_name
from rollbook.adapters.archive.importing import import_files
from rollbook.adapters.archive.trimming import archive
from rollbook.adapters.archive.writing import write
from rollbook.adapters.cli.reading import read_in_order
from rollbook.adapters.clock import SystemClock
from rollbook.adapters.history import open_history
from rollbook.adapters.ids import UuidV7
from rollbook.adapters.jetstream.api import question
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.provision import provision
from rollbook.adapters.jetstream.provision import wanted as wanted_stream
from rollbook.adapters.jetstream.snapshots import JetStreamSnapshots
from rollbook.adapters.publisher import Publisher
from rollbook.events import Codec, Registered, Undecodable, WorkerDown, WorkerUp, stream_name, worker_subject
from rollbook.projections.history.filters import Filter
from rollbook.projections.history.moments import NoSuchMoment, state_at
from rollbook.projections.history.past import JoinedPast, LogPast
from rollbook.projections.history.replay import replay
from rollbook.projections.log.catchup import newest_state, state_now
from rollbook.projections.ports import HistoryHole, LogUnavailable
from rollbook.projections.state.fold import message_id

pytestmark = pytest.mark.integration

WHEN = "2026-11-30T02:40:28.000Z"
_ids = UuidV7()


class Fleet:
    """A fleet's log on a server, with what a test writes to it."""

    def __init__(self, client, name):
        self.client = client
        self.name = name
        self.codec = Codec(name)
        self.log = JetStreamLog(client, name, timeout=DEADLINE)
        self.snapshots = JetStreamSnapshots(client, name, timeout=DEADLINE)
        self.past = LogPast(self.log, self.snapshots)

    async def say(self, *facts):
        drafts = [self.codec.draft(fact, id=_ids.new(), time=WHEN, publisher="test") for fact in facts]
        return (await self.log.append(drafts))[-1]

    async def garbage(self, worker, payload=b"\xff\x00\n"):
        await self.client.ask(worker_subject(self.name, worker), payload, timeout=DEADLINE)

    async def keep(self, *sequences):
        for sequence in sequences:
            state = await state_at(self.past, self.codec, sequence)
            stored = await self.log.get(sequence)
            await self.snapshots.save(state.snapshot((await self.log.state()).identity, message_id(stored)))

    async def digest(self, past=None, at=None):
        past = past or self.past
        return (await state_at(past, self.codec, at or (await past.ends())[1])).digest()

    async def messages(self, past=None):
        past = past or self.past
        first, last = await past.ends()
        return [stored async for batch in past.read(first, last) for stored in batch]

    async def export(self, path, first=1):
        last = (await self.past.ends())[1]
        return await write(self.past, self.codec, (first, last), path, identity="x", written=WHEN)


def same(some, others):
    """The same messages; files keep microseconds of the times."""
    bare, bare_too = ([(one.sequence, one.subject, one.payload) for one in all_of] for all_of in (some, others))
    close = all(abs(a.stored_at - b.stored_at) < 1e-5 for a, b in zip(some, others, strict=True))
    return bare == bare_too and close


@contextlib.asynccontextmanager
async def opened(url, name):
    client = await connect(Connection(url=url), name="tests", timeout=DEADLINE)
    try:
        yield Fleet(client, name)
    finally:
        await client.close()


@pytest.fixture
async def fleet_log(nats_server, fleet):
    """Some 3000 messages, a few of them no facts."""
    async with opened(nats_server.url, fleet) as opened_fleet:
        await provision(opened_fleet.client, fleet, timeout=DEADLINE)
        facts = [fact for seed in range(10) for fact in a_history(seed)]
        for begin in range(0, len(facts), 500):
            await opened_fleet.say(*facts[begin : begin + 500])
        await opened_fleet.garbage("w")
        await opened_fleet.say(*a_history(11, 20))
        yield opened_fleet


# ---------------------------------------------------------------- reading


async def test_what_is_asked_for_is_all_that_is_read_and_none_of_it_is_missing(fleet_log):
    everything = await fleet_log.messages()
    assert [stored.sequence for stored in everything] == list(range(1, 3022))
    for wanted in (Filter(worker="rollout-0-0"), Filter(proxy="a"), Filter(operator="ann"), Filter(pool="reward")):
        subjects = wanted.subjects(fleet_log.name)
        read = [stored async for batch in fleet_log.past.read(101, 2900, subjects) for stored in batch]
        assert 0 < len(read) < 2800
        assert _wanted(fleet_log, wanted, read) == _wanted(fleet_log, wanted, everything[100:2900])


def _wanted(fleet_log, wanted, messages):
    found = []
    for stored in messages:
        with contextlib.suppress(Undecodable):
            recorded = fleet_log.codec.decode(stored.payload, subject=stored.subject, sequence=stored.sequence)
            if wanted.admits(recorded):
                found.append(stored)
    return found


async def test_reading_ends_also_where_nothing_stands_on_the_subjects(fleet_log):
    async with asyncio.timeout(DEADLINE):
        nobody = [worker_subject(fleet_log.name, "nobody")]
        assert [batch async for batch in fleet_log.past.read(1, 3021, nobody)] == []
        last = await fleet_log.say(WorkerUp(worker="late", incarnation=1))
        late = [worker_subject(fleet_log.name, "late")]
        assert [batch async for batch in fleet_log.past.read(1, last - 1, late)] == []


async def test_following_with_a_filter_sees_what_comes(fleet_log):
    subjects = Filter(worker="late").subjects(fleet_log.name)
    async with (
        asyncio.timeout(DEADLINE),
        contextlib.aclosing(read_in_order(fleet_log.log, 3021, None, [subjects[0]])) as messages,
    ):
        waiting = asyncio.create_task(anext(messages))
        await fleet_log.say(WorkerUp(worker="other", incarnation=1), WorkerUp(worker="late", incarnation=1))
        assert (await waiting).sequence == 3023


@pytest.mark.parametrize("when", [-1, 3.5, None, b"now", dt.datetime(2026, 1, 1), dt.date(2026, 1, 1)])  # noqa: DTZ001
async def test_what_is_no_moment_is_said_to_be_none(fleet_log, nats_server, when):
    async with open_history(nats_server.url, fleet_log.name) as history:
        with pytest.raises(NoSuchMoment):
            await history.at(when)


async def test_the_library_tells_all_of_it(fleet_log, nats_server):
    async with open_history(nats_server.url, fleet_log.name) as history:
        then = await history.at(500)
        assert then.sequence == 500
        assert then.time
        assert (await history.between(500, 500)).differs is False
        assert (await history.between(500, "now")).differs
        state = await history.state(2000)
        for worker in state.roster.workers.values():
            assert (await history.explain(worker.name, at=2000)).phase == worker.phase
        facts = [
            recorded async for recorded in history.facts(wanted=Filter(worker="rollout-0-0"), since=100, until=200)
        ]
        assert facts
        assert all(100 <= recorded.sequence <= 200 for recorded in facts)
        rows = await history.rows(since=1, until=50)
        assert [row["sequence"] for row in rows] == list(range(1, 51))
        assert rows[0]["stored_at"].tzinfo is not None
        assert (await history.replay()).digest == await fleet_log.digest()
        first, again = (Registered(proxy="a", worker="late", incarnation=life, url="http://h:1") for life in (1, 2))
        await fleet_log.say(WorkerUp(worker="late", incarnation=1), first)
        down = await fleet_log.say(WorkerDown(worker="late", incarnation=1, evidence="exited"))
        last = await fleet_log.say(WorkerUp(worker="late", incarnation=2), again)
        [one] = [one for one in await history.recoveries() if one.worker == "late"]
        assert (one.proxy, one.incarnation, one.evidence) == ("a", 2, "exited")
        assert (one.down_sequence, one.registered_sequence) == (down, last)


# ---------------------------------------------------------------- export and import


async def test_a_log_made_from_an_export_folds_to_the_same_digest(fleet_log, start_nats, tmp_path):
    written = await fleet_log.export(tmp_path / "run.jsonl.zst")
    files = ArchivePast.open(tmp_path / "run.jsonl.zst", fleet_log.name).files
    async with opened(start_nats().url, fleet_log.name) as other:
        imported = await import_files(other.client, other.name, files, timeout=DEADLINE)
        assert (imported.first, imported.last, imported.already) == (1, 3021, 0)
        found, _ = await replay(other.past, other.codec, 3021)
        assert found.digest == imported.digest == written.digest == await fleet_log.digest()
        before, after = await fleet_log.messages(), await other.messages()
        assert [(one.sequence, one.subject) for one in after] == [(one.sequence, one.subject) for one in before]
        assert all(
            abs(a.stored_at - b.stored_at) < 1e-5 for a, b in zip(before, after, strict=True) if a.sequence != 3001
        )
        assert [_id(other, one) for one in after] == [_id(fleet_log, one) for one in before]
        with pytest.raises(ArchiveError, match="there already"):
            await other.export(tmp_path / "run.jsonl.zst")
        await other.export(tmp_path / "again.jsonl.zst")
        again = ArchivePast.open(tmp_path / "again.jsonl.zst", other.name)
        assert await other.digest(again) == imported.digest


def _id(fleet_log, stored):
    try:
        return fleet_log.codec.decode(stored.payload, subject=stored.subject, sequence=stored.sequence).id
    except Undecodable:
        return None


async def test_an_import_that_was_broken_off_goes_on(fleet_log, start_nats, tmp_path, monkeypatch):
    written = await fleet_log.export(tmp_path / "run.jsonl.zst")
    files = ArchivePast.open(tmp_path / "run.jsonl.zst", fleet_log.name).files
    store, batches = importing._store, []

    async def broken(client, stream, batch, expected, timeout):
        batches.append(batch)
        if len(batches) == 3:
            raise ConnectionResetError("the cable was pulled")
        await store(client, stream, batch, expected, timeout)

    async with opened(start_nats().url, fleet_log.name) as other:
        monkeypatch.setattr(importing, "_store", broken)
        with pytest.raises(ConnectionResetError):
            await import_files(other.client, other.name, files, timeout=DEADLINE)
        assert (await other.log.state()).last_sequence == 2000
        monkeypatch.setattr(importing, "_store", store)
        imported = await import_files(other.client, other.name, files, timeout=DEADLINE)
        assert imported.already == 2000
        assert await other.digest() == written.digest


async def test_a_fleet_that_has_a_log_is_not_imported_into(fleet_log, tmp_path):
    await fleet_log.export(tmp_path / "run.jsonl.zst")
    await fleet_log.say(WorkerUp(worker="late", incarnation=1))
    files = ArchivePast.open(tmp_path / "run.jsonl.zst", fleet_log.name).files
    with pytest.raises(ArchiveError, match="holds 3022 messages"):
        await import_files(fleet_log.client, fleet_log.name, files, timeout=DEADLINE)
    assert (await fleet_log.log.state()).last_sequence == 3022


async def test_nothing_is_written_of_a_damaged_archive(fleet_log, start_nats, tmp_path):
    await fleet_log.export(tmp_path / "run.jsonl.zst")
    path = tmp_path / "run.jsonl.zst"
    path.write_bytes(path.read_bytes()[:-100])
    async with opened(start_nats().url, fleet_log.name) as other:
        with pytest.raises(ArchiveError):
            await import_files(other.client, other.name, ArchivePast.open(path).files, timeout=DEADLINE)
        with pytest.raises(LogUnavailable, match="not found"):
            await other.log.state()


async def test_a_part_that_was_imported_is_a_log_that_a_controller_can_start_from(fleet_log, start_nats, tmp_path):
    await fleet_log.export(tmp_path / "part.jsonl.zst", 2500)
    files = ArchivePast.open(tmp_path / "part.jsonl.zst", fleet_log.name).files
    async with opened(start_nats().url, fleet_log.name) as other:
        await import_files(other.client, other.name, files, timeout=DEADLINE)
        state = await other.log.state()
        assert (state.first_sequence, state.last_sequence) == (2500, 3021)
        now = await state_now(other.log, other.snapshots, other.codec, SystemClock())
        assert now.digest() == await fleet_log.digest()


async def test_a_fact_that_the_log_has_twice_is_imported_twice(nats_server, fleet, start_nats, tmp_path):
    async with opened(nats_server.url, fleet) as log, opened(start_nats().url, fleet) as other:
        await provision(log.client, fleet, timeout=DEADLINE)
        await log.say(WorkerUp(worker="a", incarnation=1), WorkerDown(worker="a", incarnation=1, evidence="exited"))
        first = await log.log.get(1)
        await log.client.ask(first.subject, first.payload, timeout=DEADLINE)  # without its id for the server
        written = await log.export(tmp_path / "run.jsonl.zst")
        files = ArchivePast.open(tmp_path / "run.jsonl.zst", fleet).files
        await import_files(other.client, fleet, files, timeout=DEADLINE)
        assert (await other.log.state()).last_sequence == 3
        assert await other.digest() == written.digest


async def _without(client, fleet, facts, gone):
    """A log like that of an archive's fleet, in which messages can be deleted, and one was."""
    await question(
        client, f"STREAM.CREATE.{stream_name(fleet)}", wanted_stream(fleet, 1) | {"deny_delete": False}, timeout=20
    )
    await JetStreamLog(client, fleet, timeout=DEADLINE).append(facts)
    await question(client, f"STREAM.MSG.DELETE.{stream_name(fleet)}", {"seq": gone}, timeout=DEADLINE)


@pytest.mark.parametrize("gone", [2, 5])
async def test_a_log_with_a_hole_is_not_taken_for_the_beginning_of_an_archive(nats_server, fleet, tmp_path, gone):
    async with opened(nats_server.url, fleet) as log:
        await provision(log.client, fleet, timeout=DEADLINE)
        facts = [
            log.codec.draft(WorkerUp(worker=f"w{n}", incarnation=1), id=_ids.new(), time=WHEN, publisher="test")
            for n in range(6)
        ]
        await log.log.append(facts)
        await log.export(tmp_path / "run.jsonl.zst")
        await question(log.client, f"STREAM.DELETE.{stream_name(fleet)}", timeout=DEADLINE)
        await _without(log.client, fleet, facts[:5], gone)
        files = ArchivePast.open(tmp_path / "run.jsonl.zst", fleet).files
        async with asyncio.timeout(DEADLINE):
            with pytest.raises(ArchiveError, match="are not the beginning of this archive"):
                await import_files(log.client, fleet, files, timeout=DEADLINE)
            with pytest.raises(HistoryHole, match=f"no sequence {gone} "):
                await log.messages()


# ---------------------------------------------------------------- archive


async def test_what_is_archived_is_forgotten_by_the_server_and_still_read(fleet_log, tmp_path):
    whole = await fleet_log.messages()
    digests = {n: await fleet_log.digest(at=n) for n in (1, 700, 1500, 2500, 3021)}
    await fleet_log.keep(1500, 2500)
    done = await _archive(fleet_log, tmp_path)
    assert (done.cut, done.file.first, done.file.last) == (1500, 1, 1499)
    assert done.forgotten + done.kept == 1499
    assert done.kept < 40, "the last message of each subject, and what lives are numbered from"
    assert (await fleet_log.log.state()).first_sequence == 1500
    joined = JoinedPast(ArchivePast.open(tmp_path, fleet_log.name), fleet_log.past)
    assert same(await fleet_log.messages(joined), whole)
    assert {n: await fleet_log.digest(joined, at=n) for n in digests} == digests
    found, _ = await replay(joined, fleet_log.codec, 3021)
    assert found.agrees
    assert [check.sequence for check in found.checks] == [1500, 2500]

    await fleet_log.keep(3000)
    again = await _archive(fleet_log, tmp_path)
    assert (again.cut, again.file.first, again.file.last) == (2500, 1500, 2499)
    joined = JoinedPast(ArchivePast.open(tmp_path, fleet_log.name), fleet_log.past)
    assert same(await fleet_log.messages(joined), whole)
    nothing = await _archive(fleet_log, tmp_path)
    assert (nothing.file, nothing.forgotten) == (None, 0)


async def _archive(fleet_log, folder, keep=2):
    return await archive(
        fleet_log.client, fleet_log.log, fleet_log.snapshots, fleet_log.name, folder, keep=keep, written=WHEN
    )


async def test_a_controller_starts_and_a_publisher_numbers_as_if_nothing_were_gone(fleet_log, nats_server, tmp_path):
    await fleet_log.say(WorkerUp(worker="quiet", incarnation=7))  # its highest life
    await fleet_log.say(WorkerDown(worker="quiet", incarnation=3, evidence="timeout"))  # a late word on an earlier one
    await fleet_log.say(*a_history(12, 50))
    await fleet_log.keep(3060, 3070)
    lasts = {subject: await fleet_log.log.last(subject) for subject in await _subjects(fleet_log)}
    before = await fleet_log.digest()
    await _archive(fleet_log, tmp_path)

    assert (await state_now(fleet_log.log, fleet_log.snapshots, fleet_log.codec, SystemClock())).digest() == before
    assert (await newest_state(fleet_log.log, fleet_log.snapshots)).sequence == 3070
    assert {subject: await fleet_log.log.last(subject) for subject in lasts} == lasts, "whoever writes compares with it"
    publisher = Publisher(fleet_log.name, Connection(url=nats_server.url))
    try:
        life = publisher.worker("quiet")
        await asyncio.to_thread(life.up().result, DEADLINE)
        assert life.incarnation == 8
    finally:
        await asyncio.to_thread(publisher.close, DEADLINE)


async def _subjects(fleet_log):
    return {stored.subject for stored in await fleet_log.messages()}


async def _dies(*_):
    raise ConnectionResetError("killed")


async def test_an_archiving_that_died_after_its_file_is_finished_by_the_next(fleet_log, tmp_path, monkeypatch):
    whole = await fleet_log.messages()
    await fleet_log.keep(1500, 2500)

    with monkeypatch.context() as patch:
        patch.setattr(trimming, "_forget", _dies)
        with pytest.raises(ConnectionResetError):
            await _archive(fleet_log, tmp_path)
    assert (await fleet_log.log.state()).first_sequence == 1
    done = await _archive(fleet_log, tmp_path)
    assert done.file is None
    assert done.forgotten > 1400
    joined = JoinedPast(ArchivePast.open(tmp_path, fleet_log.name), fleet_log.past)
    assert same(await fleet_log.messages(joined), whole)


async def test_nothing_is_archived_without_enough_snapshots_or_the_files_before(fleet_log, tmp_path):
    await fleet_log.keep(1500)
    with pytest.raises(ArchiveError, match="only 1 that the log confirms"):
        await _archive(fleet_log, tmp_path / "a")
    await _archive(fleet_log, tmp_path / "a", keep=1)
    await fleet_log.keep(2000)
    with pytest.raises(ArchiveError, match="begins at sequence 1500"):
        await _archive(fleet_log, tmp_path / "b", keep=1)


async def test_nothing_is_forgotten_that_the_folder_holds_of_another_log(fleet_log, tmp_path):
    """A stream that was made anew, its fleet called the same: the files of the old one say nothing of it."""
    await fleet_log.keep(2000)
    await _archive(fleet_log, tmp_path / "long", keep=1)
    await question(fleet_log.client, f"STREAM.DELETE.{stream_name(fleet_log.name)}", timeout=DEADLINE)
    await provision(fleet_log.client, fleet_log.name, timeout=DEADLINE)
    await fleet_log.say(*a_history(20, 100))
    await fleet_log.keep(80)
    whole = await fleet_log.messages()
    with pytest.raises(ArchiveError, match="sequence 1 is another message in the log than in its file"):
        await _archive(fleet_log, tmp_path / "long", keep=1)
    for beginning in (40, 79):  # files that end before the cut are not gone on with, either
        folder = tmp_path / f"short-{beginning}"
        folder.mkdir()
        other = await told(a_history(21, beginning))
        path = folder / file_name(fleet_log.name, 1, beginning)
        await write(other, Codec(fleet_log.name), (1, beginning), path, identity="x", written=WHEN)
        with pytest.raises(ArchiveError, match="sequence 1 is another message"):
            await _archive(fleet_log, folder, keep=1)
        assert len(list(folder.glob("*.zst"))) == 1
    assert await fleet_log.messages() == whole


async def test_nothing_is_forgotten_whose_file_was_damaged_since(fleet_log, tmp_path, monkeypatch):
    await fleet_log.keep(1500)
    with monkeypatch.context() as patch:
        patch.setattr(trimming, "_forget", _dies)
        with pytest.raises(ConnectionResetError):
            await _archive(fleet_log, tmp_path, keep=1)
    [path] = tmp_path.glob("*.zst")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x55
    path.write_bytes(content)
    with pytest.raises(DamagedArchive):
        await _archive(fleet_log, tmp_path, keep=1)
    assert (await fleet_log.log.state()).first_sequence == 1
    path.unlink()
    assert (await _archive(fleet_log, tmp_path, keep=1)).file is not None


async def test_nothing_of_a_stream_that_was_made_anew_meanwhile_is_forgotten(fleet_log, tmp_path, monkeypatch):
    await fleet_log.keep(1500)
    forget = trimming._forget

    async def made_anew(*arguments):
        await question(fleet_log.client, f"STREAM.DELETE.{stream_name(fleet_log.name)}", timeout=DEADLINE)
        await provision(fleet_log.client, fleet_log.name, timeout=DEADLINE)
        await fleet_log.say(*a_history(20, 100))
        return await forget(*arguments)

    monkeypatch.setattr(trimming, "_forget", made_anew)
    with pytest.raises(ArchiveError, match="was deleted and made anew meanwhile"):
        await _archive(fleet_log, tmp_path, keep=1)
    assert len(await fleet_log.messages()) == 100


async def test_a_second_archiving_at_the_same_time_is_turned_away(fleet_log, tmp_path, monkeypatch):
    whole = await fleet_log.messages()
    await fleet_log.keep(1500, 2500)
    (tmp_path / f"{file_name(fleet_log.name, 1, 700)}.part").write_bytes(b"of one that died")
    done = await asyncio.gather(
        *(_archive(fleet_log, tmp_path, keep=keep) for keep in (1, 2, 1)), return_exceptions=True
    )
    assert [type(one) for one in done].count(ArchiveError) == 2
    assert any("is held by another process, which is archiving" in str(one) for one in done)
    await _archive(fleet_log, tmp_path, keep=1)
    joined = JoinedPast(ArchivePast.open(tmp_path, fleet_log.name), fleet_log.past)
    assert same(await fleet_log.messages(joined), whole)
    assert list(tmp_path.glob("*.part")) == []


async def test_what_this_version_cannot_start_from_is_no_snapshot_to_keep(fleet_log, tmp_path):
    await fleet_log.keep(1500)
    stored = await fleet_log.log.get(2000)
    state = await state_at(fleet_log.past, fleet_log.codec, 2000)
    snapshot = state.snapshot((await fleet_log.log.state()).identity, message_id(stored))
    await fleet_log.snapshots.save(msgspec.structs.replace(snapshot, schema=snapshot.schema - 1))
    with pytest.raises(ArchiveError, match="only 1 that the log confirms"):
        await _archive(fleet_log, tmp_path)
    assert (await _archive(fleet_log, tmp_path, keep=1)).cut == 1500


async def test_provisioning_again_keeps_the_cut(fleet_log, tmp_path):
    await fleet_log.keep(1500)
    await _archive(fleet_log, tmp_path, keep=1)
    await provision(fleet_log.client, fleet_log.name, timeout=DEADLINE)
    assert (await fleet_log.log.state()).first_sequence == 1500


async def test_a_log_that_lost_its_end_gets_it_back(nats_server, fleet, start_nats, tmp_path):
    async with opened(nats_server.url, fleet) as whole, opened(start_nats().url, fleet) as lost:
        for log in (whole, lost):
            await provision(log.client, fleet, timeout=DEADLINE)
        drafts = [
            whole.codec.draft(WorkerUp(worker=f"w{n}", incarnation=1), id=_ids.new(), time=WHEN, publisher="test")
            for n in range(5)
        ]
        await whole.log.append(drafts)
        await lost.log.append(drafts[:3])
        await whole.export(tmp_path / "run.jsonl.zst")
        files = ArchivePast.open(tmp_path / "run.jsonl.zst", fleet).files
        assert (await import_files(lost.client, fleet, files, timeout=DEADLINE)).already == 3
        assert await lost.digest() == await whole.digest()
