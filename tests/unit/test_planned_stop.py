"""A planned stop: the proxies let go first, or the deadline passes; then, and only then, the processes end."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from support.core import CODEC, FLEET
from support.fleet import Fleet, W, drafted, on_virtual_time

from rollbook.adapters.memory.manager import MemoryWorkerManager
from rollbook.events import Deregistered, RecoveryFailed, RecoveryStarted, WorkerDown, WorkerDraining, WorkerRetired
from rollbook.events.times import rfc3339
from rollbook.projections.ending import end
from rollbook.projections.health.verdicts import Verdicts
from rollbook.projections.log.projector import Projector
from rollbook.projections.policy import RecoveryPolicy
from rollbook.projections.recovery.due import decide
from rollbook.projections.recovery.planned import NothingToStop, stop_as_planned
from rollbook.projections.recovery.ports import ManagerUnavailable
from rollbook.projections.state.worker import Phase


class Stopping(Fleet):
    """A fleet with a manager and a projector of its own, as a program has that stops a worker."""

    @asynccontextmanager
    async def ready(self):
        self.manager = MemoryWorkerManager(self.clock, self._publish, [W])
        self.projector = Projector(self.log, CODEC, self.clock)
        folding = asyncio.create_task(self.projector.run())
        await self.start()
        await self.up(W)
        await self.manager.start_cell([W])
        await asyncio.sleep(5)
        try:
            yield
        finally:
            await end(folding)

    async def _publish(self, fact):
        await self.log.append([drafted(fact, self.ids.new())])

    async def stop_worker(self, worker=W, deadline=60.0):
        return await stop_as_planned(
            worker,
            reason="scale down",
            deadline=deadline,
            projector=self.projector,
            verdicts=Verdicts(FLEET, self.log, self.clock, self.ids, "stop"),
            manager=self.manager,
            clock=self.clock,
        )

    def order(self, *kinds):
        found = [CODEC.decode(one.payload, subject=one.subject, sequence=one.sequence) for one in self.log.messages]
        return [type(one.fact) for one in found if isinstance(one.fact, kinds)]


@on_virtual_time
async def test_draining_then_deregistered_then_down():
    fleet = Stopping()
    async with fleet.ready():
        stopped = await fleet.stop_worker()
        assert (stopped.workers, stopped.left) == ((W,), {})
        await fleet.projector.caught_up()
        assert fleet.order(WorkerDraining, Deregistered, WorkerDown) == [WorkerDraining, Deregistered, WorkerDown]
        policies = {"rollout": RecoveryPolicy()}
        assert decide(fleet.projector.state.roster, policies, fleet.clock.now()).due == ()


@on_virtual_time
async def test_a_proxy_that_does_not_let_go_is_waited_for_until_the_deadline():
    fleet = Stopping()
    async with fleet.ready():
        fleet.proxy.available = False
        began = fleet.clock.monotonic()
        stopped = await fleet.stop_worker(deadline=20.0)
        assert 20 <= fleet.clock.monotonic() - began < 25
        assert list(stopped.left) == [W]
        assert not (await fleet.manager.list_workers())[0].alive


@on_virtual_time
async def test_what_is_down_or_unknown():
    fleet = Stopping()
    async with fleet.ready():
        with pytest.raises(NothingToStop, match="rollout-9-9"):
            await fleet.stop_worker("rollout-9-9")
        await fleet.stop_worker()
        again = await fleet.stop_worker()
        assert (again.left, again.ended_before) == ({}, {})
        assert fleet.order(WorkerDraining) == [WorkerDraining]


@pytest.mark.parametrize("wrong", ["away", "unknown"])
@on_virtual_time
async def test_whose_processes_nobody_can_end_goes_on_serving(wrong):
    """Otherwise it would be drained and taken out of every proxy, and run on."""
    fleet = Stopping()
    async with fleet.ready():
        if wrong == "away":
            fleet.manager.available = False
        else:
            fleet.manager = MemoryWorkerManager(fleet.clock, fleet._publish, ["other-0-0"])
        with pytest.raises(ManagerUnavailable if wrong == "away" else NothingToStop):
            await fleet.stop_worker()
        await fleet.projector.caught_up()
        assert fleet.order(WorkerDraining, Deregistered, WorkerDown) == []
        assert fleet.projector.state.roster.workers[W].phase is Phase.SERVING


@on_virtual_time
async def test_what_had_ended_by_itself_is_named_since_a_recoverer_takes_it_for_broken():
    fleet = Stopping()
    async with fleet.ready():
        await fleet.manager.kill(W)
        await fleet.projector.caught_up()
        assert (await fleet.stop_worker()).ended_before == {W: "exited: it was killed"}
        policies = {"rollout": RecoveryPolicy()}
        assert [due.first for due in decide(fleet.projector.state.roster, policies, fleet.clock.now()).due] == [W]


@pytest.mark.parametrize("over", [False, True])
@on_virtual_time
async def test_a_cell_that_is_being_restarted_is_named_since_a_recoverer_goes_on_with_it(over):
    """`stop` said that it was done, and the cell came up again."""
    fleet = Stopping()
    async with fleet.ready():
        now = fleet.clock.now()
        claim = RecoveryStarted(worker=W, incarnation=1, at=rfc3339(now), until=rfc3339(now + 60))
        await fleet._publish(claim)
        if over:
            await fleet._publish(RecoveryFailed(worker=W, incarnation=1))
        await fleet.projector.caught_up()
        assert (await fleet.stop_worker()).ended_before == {W: "half a restart of its cell"}


@on_virtual_time
async def test_what_has_retired_is_nothing_to_stop():
    fleet = Stopping()
    async with fleet.ready():
        life = (await fleet.manager.list_workers())[0].incarnation
        await fleet._publish(WorkerRetired(worker=W, incarnation=life))
        await fleet.projector.caught_up()
        with pytest.raises(NothingToStop, match="has retired"):
            await fleet.stop_worker()


@on_virtual_time
async def test_a_life_that_a_recoverer_begins_meanwhile_is_drained_too():
    """It died while it drained; the next one serves by the time at which the processes are ended."""
    fleet = Stopping()
    async with fleet.ready():
        fleet.proxy.available = False
        stopping = asyncio.create_task(fleet.stop_worker(deadline=120.0))
        await fleet.until(lambda: WorkerDraining in fleet.order(WorkerDraining))
        (managed,) = await fleet.manager.list_workers()
        await fleet.manager.terminate(W, managed.incarnation)
        await fleet.manager.start_cell([W])
        fleet.place(W, managed.incarnation + 1)
        await asyncio.sleep(1)
        fleet.proxy.available = True
        stopped = await stopping
        await fleet.projector.caught_up()
        assert stopped.left == {}
        assert fleet.order(WorkerDraining, WorkerDown) == [WorkerDraining, WorkerDown, WorkerDraining, WorkerDown]


@on_virtual_time
async def test_what_ends_by_itself_while_it_drains_is_named_too():
    fleet = Stopping()
    async with fleet.ready():
        fleet.proxy.available = False
        stopping = asyncio.create_task(fleet.stop_worker(deadline=20.0))
        await fleet.until(lambda: fleet.order(WorkerDraining))
        await fleet.manager.kill(W)
        assert (await stopping).ended_before == {W: "exited: it was killed"}
