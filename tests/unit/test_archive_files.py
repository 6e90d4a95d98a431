"""An archive gives back exactly what was written, or names the line that is not as it was."""

import asyncio
import resource
import tracemalloc

import pytest
import zstandard
from support.core import CODEC, FLEET
from support.histories import a_history
from support.past import Told, told

from rollbook.adapters.archive.errors import ArchiveError, DamagedArchive
from rollbook.adapters.archive.folder import ArchivePast, file_name
from rollbook.adapters.archive.importing import check_files
from rollbook.adapters.archive.reading import ArchiveFile
from rollbook.adapters.archive.writing import write
from rollbook.events import WorkerCordoned, WorkerSuspected, WorkerUp
from rollbook.projections.history.moments import state_at
from rollbook.projections.history.past import JoinedPast
from rollbook.projections.history.replay import replay
from rollbook.projections.ports import HistoryHole

WHEN = "2026-11-30T02:40:28.000Z"


def lines(path):
    return zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read().splitlines(keepends=True)


def rewrite(path, changed):
    path.write_bytes(zstandard.ZstdCompressor().compress(b"".join(changed)))


async def a_past(length=40):
    past = await told(a_history(5, length))
    await past.garbage(f"rollbook.{FLEET}.worker.w", b"\xff\x00\n")
    await past.garbage(f"rollbook.{FLEET}.fleet", b'{"json":1}')
    await past.garbage(f"rollbook.{FLEET}.fleet", b"{}")
    await past.garbage(f"rollbook.{FLEET}.fleet", b"")
    return past


async def save(past, path, first=1, last=None):
    return await write(past, CODEC, (first, last or len(past.log.messages)), path, identity="log", written=WHEN)


@pytest.fixture
async def archive(tmp_path):
    past = await a_past()
    path = tmp_path / "run.jsonl.zst"
    await save(past, path)
    return past, path


async def everything(past, first=1, last=44):
    return [stored async for batch in past.read(first, last) for stored in batch]


async def test_every_byte_comes_back(archive):
    past, path = archive
    read = ArchivePast.open(path, FLEET)
    assert await everything(read) == await everything(past)
    assert await read.ends() == (1, 44)
    assert (await replay(read, CODEC, 44))[0].digest == (await replay(past, CODEC, 44))[0].digest
    assert await everything(read, 7, 9) == past.log.messages[6:9]
    assert ArchiveFile.open(path).verify().digest == check_files(read.files, CODEC).digest()


async def test_a_part_holds_the_state_before_it(tmp_path):
    past = await a_past()
    await save(past, tmp_path / "part.jsonl.zst", 20, 30)
    read = ArchivePast.open(tmp_path / "part.jsonl.zst", FLEET)
    assert (await state_at(read, CODEC, 25)).digest() == (await state_at(past, CODEC, 25)).digest()
    assert (await state_at(read, CODEC, 19)).digest() == (await state_at(past, CODEC, 19)).digest()
    with pytest.raises(HistoryHole):
        await state_at(read, CODEC, 18)
    with pytest.raises(HistoryHole):
        await everything(read, 25, 31)


async def test_a_folder_and_the_log_read_as_one(tmp_path):
    past = await a_past()
    whole = await everything(past)
    for first, last in ((1, 10), (11, 25)):
        await save(past, tmp_path / file_name(FLEET, first, last), first, last)
    (tmp_path / "notes.txt").write_text("nothing to do with it")
    joined = JoinedPast(ArchivePast.open(tmp_path, FLEET), past)
    states = {n: (await state_at(past, CODEC, n)).digest() for n in range(0, 45, 4)}
    times = {stored.sequence: stored.stored_at for stored in whole}
    await past.keep(26, 40)
    past.log.lose_head(24)  # what both have is read from the log
    assert await joined.ends() == (1, 44)
    assert await everything(joined) == whole
    assert {n: (await state_at(joined, CODEC, n)).digest() for n in states} == states
    assert [await joined.first_at(times[n] - 0.5) for n in (1, 10, 11, 24, 25, 44)] == [1, 10, 11, 24, 25, 44]
    assert await joined.first_at(times[44] + 1) == 45
    some = [f"rollbook.{FLEET}.fleet", f"rollbook.{FLEET}.worker.*"]
    found = [one async for batch in joined.read(5, 44, some) for one in batch]
    assert found == [one for one in whole[4:] if one.subject.split(".")[2] in {"fleet", "worker"}]


async def test_files_that_do_not_follow_on_each_other_are_refused(tmp_path):
    past = await a_past()
    await save(past, tmp_path / file_name(FLEET, 1, 10), 1, 10)
    await save(past, tmp_path / file_name(FLEET, 12, 20), 12, 20)
    with pytest.raises(ArchiveError, match="begins at sequence 12, and the file before it ends at 10"):
        ArchivePast.open(tmp_path, FLEET)


async def test_a_log_made_from_an_archive_gives_the_same_archive_again(tmp_path):
    past = await a_past()
    await save(past, tmp_path / "one.jsonl.zst")
    again = Told()
    for line in ArchiveFile.open(tmp_path / "one.jsonl.zst").messages():
        await again.garbage(line.stored.subject, line.restored)
    again.log._messages = [  # stored much later, of course
        type(one)(one.sequence, one.subject, one.payload, 9e8) for one in again.log.messages
    ]
    await save(again, tmp_path / "two.jsonl.zst")
    one, two = (list(ArchiveFile.open(tmp_path / f"{name}.jsonl.zst").messages()) for name in ("one", "two"))
    assert [line.restored for line in one[:40]] == [line.restored for line in two[:40]]
    assert (await state_at(again, CODEC, 44)).digest() == (await state_at(past, CODEC, 44)).digest()
    assert [s.stored_at async for b in again.read(1, 40) for s in b] == [s.stored_at for s in past.log.messages[:40]]


W = f"rollbook.{FLEET}.worker.w"
HEAD = b'{"specversion":"1.0","id":"1","source":"rollbook://%s/archive",' % FLEET.encode()
NOTED = b'{"archivedsequence":"6","archivedtime":"2026-01-01T00:00:00.000000Z","archivedsubject":"%s",' % W.encode()
OPAQUE = b'"type":"rollbook.archive.opaque","data_base64":"eHg="}'
STRANGE = {
    "letters that no name has": (f"{W}@1/2", b"x"),
    "an escape in its subject": (f"rollbook.{FLEET}.worker.\x1b[31m", b"x"),
    "letters of other scripts": (f"rollbook.{FLEET}.worker.wörk", b"x"),
    "what an archive writes for such": (W, HEAD + OPAQUE),
    "the same, unreadable": (W, HEAD + OPAQUE.replace(b"eHg=", b"!")),
    "notes and a line break": (W, NOTED + b'\n"a":1}'),
    "notes before what is no fact": (W, NOTED + b'"a":1'),
    "notes twice": (W, NOTED + NOTED[1:] + b'"a":1}'),
    "notes before what an archive writes": (
        W,
        NOTED + HEAD[1:] + OPAQUE,
    ),
    "the end of an archive": (W, b'{"rollbook":"end"}'),
    "more than a fact may have": (W, b"\xff" * 5_000_000),
    "bytes that are no text": (W, HEAD + b'"type":"rollbook.worker.x.v1","subject":"w","data":{},"x":"\xff"}'),
}


@pytest.mark.parametrize("which", STRANGE)
async def test_no_message_keeps_a_log_from_being_archived(tmp_path, which):
    """[I9] Whatever somebody published."""
    past = await told(a_history(5, 5))
    await past.garbage(*STRANGE[which])
    await past.say(WorkerCordoned(worker="w", by="ann", why="rollbook.archive.opaque is no name for a worker"))
    path = tmp_path / "run.jsonl.zst"
    written = await save(past, path)
    files = [ArchiveFile.open(path)]
    assert check_files(files, CODEC).digest() == written.digest
    assert await everything(ArchivePast(files), 1, 7) == await everything(past, 1, 7)


async def test_a_part_of_a_log_of_many_workers_can_be_read_again(tmp_path):
    """Its head holds the state before it, which is as large as the fleet is."""
    past = await told(
        WorkerSuspected(worker=f"rollout-{n}-0", incarnation=1, reason="no answer " * 100) for n in range(4000)
    )
    await save(past, tmp_path / "part.jsonl.zst", 4000, 4000)
    assert len(lines(tmp_path / "part.jsonl.zst")[0]) > 4 << 20
    assert len(check_files([ArchiveFile.open(tmp_path / "part.jsonl.zst")], CODEC).roster.workers) == 4000


async def test_a_folder_of_months_holds_no_states_in_memory(tmp_path):
    past = await told(WorkerSuspected(worker=f"w-{n}-0", incarnation=1, reason=f"{n}" * 100) for n in range(500))
    await save(past, tmp_path / file_name(FLEET, 1, 459), 1, 459)
    for n in range(460, 500):
        await save(past, tmp_path / file_name(FLEET, n, n), n, n)
    assert len(ArchiveFile.open(tmp_path / file_name(FLEET, 499, 499)).base.body) > 100_000
    tracemalloc.start()
    archive = ArchivePast.open(tmp_path, FLEET)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1_000_000
    assert (await state_at(archive, CODEC, 480)).digest() == (await state_at(past, CODEC, 480)).digest()


# ---------------------------------------------------------------- damage


DAMAGE = {
    "line changed": lambda them: [*them[:20], them[20].replace(b"2026-01-01", b"2026-01-02"), *them[21:]],
    "line doubled": lambda them: [*them[:21], *them[20:]],
    "line left out": lambda them: [*them[:20], *them[21:]],
    "lines swapped": lambda them: [*them[:20], them[21], them[20], *them[22:]],
    "line cut": lambda them: [*them[:20], them[20][:50] + b"\n", *them[21:]],
    "line of another file": lambda them: [*them[:20], b'{"something":"else"}\n', *them[21:]],
    "head changed": lambda them: [them[0].replace(b'"log"', b'"gol"'), *them[1:]],
    "end left out": lambda them: them[:-1],
    "end moved forward": lambda them: [*them[:20], them[-1]],
    "something after the end": lambda them: [*them, b"{}\n"],
    "last line cut": lambda them: [*them[:-1], them[-1][:-1]],
}


@pytest.mark.parametrize(
    ("how", "line", "problem"),
    [
        ("line changed", 21, "was changed after it was written"),
        ("line doubled", 22, "stands there again, where 21 belongs"),
        ("line left out", 21, "sequence 21 stands where 20 belongs"),
        ("lines swapped", 21, "sequence 21 stands where 20 belongs"),
        ("line cut", 21, "does not say which message|no message of an archive|changed"),
        ("line of another file", 21, "no message of an archive"),
        ("head changed", 2, "was changed after it was written"),
        ("end left out", 46, "without its last line"),
        ("end moved forward", 21, "lines are missing"),
        ("something after the end", 47, "after the end"),
        ("last line cut", 46, "the line is cut"),
    ],
)
async def test_damage_is_found_with_its_line(archive, how, line, problem):
    _, path = archive
    rewrite(path, DAMAGE[how](lines(path)))
    with pytest.raises(DamagedArchive, match=problem) as caught:
        check_files([ArchiveFile.open(path)], CODEC)
    assert caught.value.line == line
    assert f"line {line}" in str(caught.value)


async def test_a_file_that_was_cut_anywhere_is_found(archive):
    _, path = archive
    whole = path.read_bytes()
    for length in range(1, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(ArchiveError):
            check_files([ArchiveFile.open(path)], CODEC)


async def test_a_file_with_any_byte_changed_is_found_or_is_the_same(archive):
    past, path = archive
    whole = path.read_bytes()
    digest = (await state_at(past, CODEC, 44)).digest()
    for place in range(0, len(whole), 61):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            found = check_files([ArchiveFile.open(path)], CODEC)
        except ArchiveError:
            continue
        assert found.digest() == digest, "only the frame's own header may change without changing what it holds"


async def test_messages_that_do_not_fold_to_the_state_named_are_refused(archive):
    _, path = archive
    content = lines(path)
    content[-1] = content[-1].replace(b'"digest":"', b'"digest":"f')
    rewrite(path, content)
    with pytest.raises(DamagedArchive, match="do not fold"):
        check_files([ArchiveFile.open(path)], CODEC)


async def test_what_the_server_would_not_take_is_found_before_anything_is_written(tmp_path):
    past = await a_past()
    await past.garbage(W, b"\xff" * 2_000_000)
    await save(past, tmp_path / "run.jsonl.zst")
    files = [ArchiveFile.open(tmp_path / "run.jsonl.zst")]
    with pytest.raises(ArchiveError, match="sequence 45 has 2000000 bytes, and the server takes messages of 1048576"):
        check_files(files, CODEC, max_payload=1 << 20)
    check_files(files, CODEC, max_payload=1 << 22)


async def test_an_interrupted_export_leaves_nothing(tmp_path):
    past = await a_past()
    past.log.lose_head(20)
    with pytest.raises(HistoryHole):
        await save(past, tmp_path / "run.jsonl.zst", 1, 44)
    assert list(tmp_path.iterdir()) == []


async def test_a_file_that_is_there_is_not_written_over(tmp_path):
    past = await a_past()
    await save(past, tmp_path / "run.jsonl.zst")
    with pytest.raises(ArchiveError, match="there already"):
        await save(past, tmp_path / "run.jsonl.zst")


async def test_a_full_disk_is_told_with_the_file_and_leaves_nothing(tmp_path):
    past = await told(a_history(7, 3000))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(ArchiveError, match="cannot be written: File too large"):
            await save(past, tmp_path / "run.jsonl.zst")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


async def test_a_clock_that_was_put_back_between_two_files_hides_none_of_them(tmp_path):
    past = await told(a_history(8, 20))
    await save(past, tmp_path / file_name(FLEET, 1, 20), 1, 20)
    past.clock.time -= 1000
    await past.say(*a_history(9, 20))
    await save(past, tmp_path / file_name(FLEET, 21, 40), 21, 40)
    archive = ArchivePast.open(tmp_path, FLEET)
    newest = past.log.messages[39].stored_at
    assert await archive.first_at(newest) == 40
    assert await archive.first_at(newest + 1) == 41
    assert await archive.first_at(past.log.messages[20].stored_at - 1) == 1


async def test_two_that_write_one_file_do_not_write_into_each_other(tmp_path):
    past = await told(a_history(6, 3000))
    path = tmp_path / "run.jsonl.zst"

    class Slow(Told):
        """Hands over a little at a time."""

        async def read(self, first, last, subjects=()):
            async for batch in past.read(first, last, subjects):
                for begin in range(0, len(batch), 100):
                    yield batch[begin : begin + 100]
                    await asyncio.sleep(0)

    ways = (write(Slow(), CODEC, (1, 3000), path, identity=name, written=WHEN) for name in ("one", "two"))
    done = await asyncio.gather(*ways, return_exceptions=True)
    assert sorted(type(one).__name__ for one in done) == ["ArchiveError", "Written"]
    assert "is held by another process, which is writing run.jsonl.zst" in str(done)
    assert ArchiveFile.open(path).verify().last == 3000
    assert list(tmp_path.iterdir()) == [path]


async def test_what_one_that_died_left_half_written_is_written_over(tmp_path):
    past = await a_past()
    (tmp_path / "run.jsonl.zst.part").write_bytes(b"x" * 1_000_000)
    written = await save(past, tmp_path / "run.jsonl.zst")
    assert written.size < 1_000_000
    assert ArchiveFile.open(tmp_path / "run.jsonl.zst").verify().last == 44
    assert len(list(tmp_path.iterdir())) == 1


async def test_what_is_no_archive_is_said_so(tmp_path):
    path = tmp_path / "run.jsonl.zst"
    path.write_text("hello")
    with pytest.raises(ArchiveError, match="not compressed with zstandard"):
        ArchiveFile.open(path)
    whole = zstandard.ZstdCompressor(write_checksum=True).compress(b'{"type":"x"}\n')
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DamagedArchive, match="line 1: the file is damaged here or soon after"):
        ArchiveFile.open(path)
    rewrite(path, [b'{"type":"x"}\n'])
    with pytest.raises(ArchiveError, match="first line"):
        ArchiveFile.open(path)
    with pytest.raises(ArchiveError, match="cannot be read"):
        ArchiveFile.open(tmp_path / "nothing")
    with pytest.raises(ArchiveError, match="there is no archive"):
        ArchivePast.open(tmp_path / "nothing", FLEET)
    await save(await told([WorkerUp(worker="w", incarnation=1)]), tmp_path / "ours.jsonl.zst")
    with pytest.raises(ArchiveError, match="of fleet 'f', and this is 'g'"):
        ArchiveFile.open(tmp_path / "ours.jsonl.zst", "g")
    with pytest.raises(ArchiveError, match="nothing to write"):
        await save(Told(), tmp_path / "empty.jsonl.zst", 1, 0)
