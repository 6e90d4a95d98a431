"""Holes in the log are named at the start and while running; `--relist` begins anew from what is there [I1]."""

import asyncio

import pytest
from support.fleet import BY, Fleet, W, on_virtual_time

from rollbook.adapters.memory.log import MemoryLog
from rollbook.events import FleetObserved, WorkerCordoned, WorkerUp
from rollbook.projections.log.authority import LeadershipLost
from rollbook.projections.log.catchup import newest_state
from rollbook.projections.log.projector import LogRewound
from rollbook.projections.log.relisting import NotRelisted, whole_part
from rollbook.projections.ports import HistoryHole, ProviderUnavailable

WAYS = r"Two ways out: `rollbook up --relist` begins anew .* `rollbook import` restores an archive"


class Relisted(Fleet):
    relist = False

    def make(self, owner="one", rng=None, *, standby=True):
        made = super().make(owner, rng, standby=standby, relist=self.relist)
        self.leadership = made._leadership
        return made

    def make_anew(self):
        """The stream is deleted and made again, empty."""
        self.log.lose_tail(0)
        self.log._identity = "made anew"

    async def purge(self):
        self.log.lose_head(len(self.log.messages) + 1)


async def with_a_worker():
    fleet = Relisted()
    await fleet.start("one")
    await fleet.up(incarnation=4)
    await fleet.registered(incarnation=4)
    return fleet


# ---------------------------------------------------------------- noticed


@on_virtual_time
async def test_a_stream_made_anew_is_noticed_at_the_start():
    fleet = await with_a_worker()
    last = len(fleet.log.messages)
    await fleet.stop()
    fleet.make_anew()
    with pytest.raises(HistoryHole, match=rf"no sequence {last} .*deleted and made anew, and ends at 0.*{WAYS}"):
        await fleet.start("two")
    assert fleet.listed() != []


@on_virtual_time
async def test_a_stream_made_anew_is_noticed_while_running():
    fleet = await with_a_worker()
    fleet.log.cut_off()
    await asyncio.sleep(2)
    fleet.make_anew()
    fleet.log.available = True
    for incarnation in range(1, 30):
        await fleet.say(WorkerUp(worker=W, incarnation=incarnation))
    with pytest.raises(HistoryHole, match=f"made anew.*{WAYS}"):
        await fleet.running
    assert fleet.listed() != []


@on_virtual_time
async def test_a_copy_of_the_log_under_another_identity_is_folded_from_its_beginning():
    fleet = await with_a_worker()
    before = fleet.controller.projector.state.roster
    await fleet.stop()
    fleet.log._identity = "restored from a backup"
    fleet.told.clear()
    await fleet.start("two")
    assert next(event for event, _ in fleet.told) == "snapshot.of_another_log"
    assert fleet.controller.projector.state.roster == before


@on_virtual_time
async def test_a_log_that_lost_its_tail_is_noticed_at_the_start_and_while_running():
    """semantics.md, 6: what is there is folded, and reading back makes the rest right; but nobody is left unaware."""
    fleet = await with_a_worker()
    await fleet.stop()
    fleet.log.lose_tail(2)
    await fleet.start("two")
    [told] = [keys["reason"] for event, keys in fleet.told if event == "snapshot.refused"]
    assert "the log ends at 2: it lost its tail" in told
    assert "restore an archive" in told
    fleet.log.cut_off()
    await asyncio.sleep(2)
    fleet.log.lose_tail(1)
    fleet.log.available = True
    with pytest.raises(LogRewound, match=r"it lost its tail.*Two ways out"):
        await fleet.running


@on_virtual_time
async def test_readers_do_not_take_a_new_stream_for_the_old_one():
    fleet = await with_a_worker()
    await fleet.stop()
    fleet.make_anew()
    with pytest.raises(HistoryHole, match=WAYS):
        await newest_state(fleet.log, fleet.snapshots)


# ---------------------------------------------------------------- the way out


@pytest.mark.parametrize("hole", ["made anew", "purged"])
@on_virtual_time
async def test_relisting_begins_with_what_the_provider_lists_and_removes_nobody_who_serves(hole):
    """[I1] [I4]: the worker stays registered all the while; the next start needs nothing special."""
    fleet = await with_a_worker()
    await fleet.say(WorkerCordoned(worker="rollout-9-0", **BY))
    await fleet.stop()
    if hole == "made anew":
        fleet.make_anew()
    else:
        await fleet.purge()
    with pytest.raises(HistoryHole):
        await fleet.start("two")
    fleet.relist = True
    removed = []
    fleet.proxy.on_effect = lambda effect, entry: removed.append((effect, entry.worker))
    await fleet.start("three")
    await fleet.registered(incarnation=4)
    roster = fleet.controller.projector.state.roster
    assert list(roster.workers) == [W]
    assert roster.workers[W].incarnation == 4
    assert removed == []
    [listing] = fleet.facts(FleetObserved)
    assert listing.pools == ("rollout",)
    await fleet.stop()
    fleet.relist = False
    await fleet.start("four")
    await fleet.down(incarnation=4)
    await fleet.until(lambda: not fleet.listed())


@on_virtual_time
async def test_relisting_folds_what_is_left_of_the_log():
    fleet = await with_a_worker()
    await fleet.stop()
    fleet.make_anew()
    await fleet.say(WorkerCordoned(worker=W, **BY))
    fleet.relist = True
    await fleet.start("two")
    await fleet.until(lambda: not fleet.listed())
    assert W in fleet.controller.projector.state.roster.cordons


@on_virtual_time
async def test_a_provider_that_does_not_answer_leaves_everything_as_it_is():
    fleet = await with_a_worker()
    await fleet.stop()
    fleet.make_anew()
    fleet.relist = True

    async def away():
        raise ProviderUnavailable("nobody answers")

    fleet.provider.list_workers = away
    with pytest.raises(ProviderUnavailable):
        await fleet.start("two")
    assert fleet.listed() != []
    assert fleet.seat.owner is None


@on_virtual_time
async def test_a_provider_that_never_answers_is_not_waited_for():
    fleet = await with_a_worker()
    await fleet.stop()
    fleet.make_anew()
    fleet.relist = True
    fleet.provider.seconds = 10_000.0
    began = fleet.clock.monotonic()
    with pytest.raises(NotRelisted, match=r"no workers within 3 s .* start with --relist again"):
        await fleet.start("two")
    assert fleet.clock.monotonic() - began < 10
    assert fleet.seat.owner is None


@on_virtual_time
async def test_i7_who_wakes_up_after_its_lease_with_a_listing_in_hand_writes_none():
    fleet = await with_a_worker()
    await fleet.stop()
    fleet.make_anew()
    fleet.relist = True
    listed = fleet.provider.list_workers

    async def slow():
        found = await listed()
        fleet.leadership.left = lambda: 0.0  # stopped here, and its own clock is the first to know
        return found

    fleet.provider.list_workers = slow
    with pytest.raises(LeadershipLost):
        await fleet.start("two", standby=False)
    assert fleet.facts(FleetObserved) == []


@on_virtual_time
async def test_a_beginning_that_cannot_be_kept_is_none():
    fleet = await with_a_worker()
    await fleet.stop()
    fleet.make_anew()
    fleet.relist = True
    fleet.snapshots.available = False
    with pytest.raises(NotRelisted, match="start with --relist again"):
        await fleet.start("two")
    assert fleet.listed() != []


@on_virtual_time
async def test_the_whole_part_begins_behind_the_last_hole():
    fleet = Fleet()
    for incarnation in range(1, 11):
        await fleet.say(WorkerUp(worker=W, incarnation=incarnation))
    assert (await whole_part(fleet.log, lambda *_, **__: None)).sequence == 0
    fleet.log.lose_head(3)
    assert (await whole_part(fleet.log, lambda *_, **__: None)).sequence == 2

    async def read(after):
        yield [one for one in fleet.log.messages if one.sequence not in {5, 7}]

    async def get(sequence):
        return None if sequence == 5 else await MemoryLog.get(fleet.log, sequence)

    fleet.log.read, fleet.log.get = read, get  # 5 is gone; 7 was only lost on the way
    assert (await whole_part(fleet.log, lambda *_, **__: None)).sequence == 5
