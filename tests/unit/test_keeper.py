"""Snapshots by count, by time and at a clean stop; by the leader alone; and nothing stops for one."""

import asyncio
import itertools

import msgspec
from support.core import CODEC
from support.fleet import Fleet, W, on_virtual_time

from rollbook.events import WorkerSuspected, WorkerUp
from rollbook.projections.log import keeper
from rollbook.projections.policy import SnapshotPolicy
from rollbook.projections.state.fold import State, restore


class Snapped(Fleet):
    """A fleet whose snapshots are taken as `kept` says."""

    def __init__(self, **kept):
        super().__init__()
        self.policy = msgspec.structs.replace(self.policy, snapshots=SnapshotPolicy(**kept))

    def saved(self):
        return [keys["sequence"] for event, keys in self.told if event == "snapshot.saved"]

    async def facts_come(self, count):
        for number in range(count):
            await self.say(WorkerSuspected(worker=f"rollout-{number % 7}-0", incarnation=1))

    async def all_kept(self):
        return [one async for one in self.snapshots.newest_first()]


@on_virtual_time
async def test_i5_by_count():
    fleet = Snapped(every_facts=10, every_seconds=1e9)
    await fleet.start()
    await asyncio.sleep(1)
    began = len(fleet.log.messages)
    assert fleet.saved() == []
    for _ in range(5):
        await fleet.facts_come(10)
        await asyncio.sleep(60)
    saved = fleet.saved()
    assert len(saved) == (began + 50) // 10
    assert all(10 <= later - earlier < 20 for earlier, later in itertools.pairwise(saved))
    for snapshot in await fleet.all_kept():
        state = State()
        for stored in fleet.log.messages[: snapshot.sequence]:
            state.apply(stored, CODEC)
        assert restore(snapshot).encode() == state.encode() == snapshot.body


@on_virtual_time
async def test_by_time_if_anything_happened():
    fleet = Snapped(every_facts=1_000_000, every_seconds=100)
    await fleet.start()
    await asyncio.sleep(101)
    first = fleet.saved()
    assert first == [len(fleet.log.messages)]
    await asyncio.sleep(10_000)
    assert fleet.saved() == first
    await fleet.facts_come(1)
    await asyncio.sleep(101)
    assert fleet.saved() == [*first, first[0] + 1]


@on_virtual_time
async def test_not_by_those_who_stand_by():
    fleet = Snapped(every_facts=5, every_seconds=10)
    await fleet.start("one")
    one, process, running = fleet.controller, fleet.process, fleet.running
    fleet.launch("two")
    await fleet.until(lambda: fleet.controller.led_by is not None)
    process.pause()  # the leader takes none now, and still leads
    await fleet.facts_come(50)
    await asyncio.sleep(2)
    assert fleet.controller.projector.state.sequence >= 50
    assert fleet.saved() == []
    process.resume()
    await fleet.stop()
    one.stop()
    await running
    assert fleet.saved()


@on_virtual_time
async def test_one_that_cannot_be_kept_is_told_tried_again_and_ends_nothing():
    fleet = Snapped(every_facts=5, every_seconds=1e9)
    fleet.snapshots.available = False
    await fleet.start()
    await fleet.facts_come(20)
    await asyncio.sleep(3 * keeper.RETRY_SECONDS)
    failed = [keys["reason"] for event, keys in fleet.told if event == "snapshot.not_saved"]
    assert 2 <= len(failed) <= 4
    assert not fleet.running.done()
    fleet.snapshots.available = True
    await fleet.until(fleet.saved)
    assert fleet.saved()[-1] == len(fleet.log.messages)


@on_virtual_time
async def test_a_stop_waits_only_so_long_for_the_last_one():
    fleet = Snapped()

    async def never(_):
        await asyncio.Event().wait()

    await fleet.start()
    fleet.snapshots.save = never
    began = fleet.clock.monotonic()
    await fleet.stop()
    assert fleet.clock.monotonic() - began < 6
    assert [event for event, _ in fleet.told][-2:] == ["snapshot.not_saved", "leader.released"]


@on_virtual_time
async def test_where_facts_come_faster_than_snapshots_can_be_kept_they_take_a_twentieth_of_the_time():
    fleet = Snapped(every_facts=1, every_seconds=1e9)
    save = fleet.snapshots.save

    async def slow(snapshot):
        await asyncio.sleep(1)
        await save(snapshot)

    fleet.snapshots.save = slow
    await fleet.start()
    for _ in range(100):
        await fleet.facts_come(3)
        await asyncio.sleep(1)
    assert len(fleet.saved()) in {5, 6}


@on_virtual_time
async def test_a_log_that_is_not_what_was_folded_confirms_no_snapshot():
    fleet = Snapped(every_facts=3, every_seconds=1e9)
    await fleet.start()
    fleet.log._identity = "made anew"
    await fleet.facts_come(3)
    await asyncio.sleep(1)
    assert fleet.saved() == []
    assert "the log was changed" in next(keys for event, keys in fleet.told if event == "snapshot.not_saved")["reason"]


@on_virtual_time
async def test_lanes_go_on_between_the_pieces_and_nothing_is_folded_meanwhile(monkeypatch):
    """[I5]: a snapshot of one moment. [I10]: of which nobody but the fold takes notice."""
    fleet = Snapped(every_facts=1_000_000, every_seconds=1e9)
    await fleet.start()
    await fleet.up()
    await fleet.registered()
    pieces, seen = State.pieces, []

    def slowly(state):
        for piece in pieces(state):
            seen.append((state.sequence, len(fleet.calls("list"))))
            yield piece

    async def later(_):
        await asyncio.sleep(1)

    monkeypatch.setattr(State, "pieces", slowly)
    with monkeypatch.context() as patch:
        patch.setattr(keeper, "_breath", lambda: asyncio.sleep(1))
        taking = asyncio.create_task(fleet.controller._keeper.take())
        await asyncio.sleep(0.5)
        await fleet.say(WorkerUp(worker="rollout-5-0", incarnation=1))
        assert await taking
    assert len({sequence for sequence, _ in seen}) == 1
    assert seen[-1][1] > seen[0][1] + 2, "the lane has read its proxy back meanwhile"
    [snapshot] = await fleet.all_kept()
    assert W in restore(snapshot).roster.workers
    assert "rollout-5-0" not in restore(snapshot).roster.workers
    await fleet.until(lambda: "rollout-5-0" in fleet.controller.projector.state.roster.workers)
