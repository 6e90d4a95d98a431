"""The monitor on virtual time: what it says, when it says nothing, and that it shoots nobody who came back."""

import asyncio
import random
from contextlib import asynccontextmanager

import pytest
from support.core import CODEC, FLEET
from support.fleet import drafted, on_virtual_time

from rollbook.adapters.memory.clock import LoopClock
from rollbook.adapters.memory.faults import LogFaults
from rollbook.adapters.memory.ids import SeededIds
from rollbook.adapters.memory.log import MemoryLog
from rollbook.adapters.memory.provider import MemoryProvider
from rollbook.events import (
    FleetEnded,
    FleetObserved,
    WorkerCordoned,
    WorkerDown,
    WorkerResumed,
    WorkerStarted,
    WorkerSuspected,
    WorkerSuspended,
    WorkerUp,
)
from rollbook.projections.ending import end
from rollbook.projections.health.monitor import Monitor, Watched
from rollbook.projections.health.verdict import OK, Finding, Outcome
from rollbook.projections.health.verdicts import Verdicts
from rollbook.projections.log.projector import Projector
from rollbook.projections.policy import HealthPolicy
from rollbook.projections.ports import HostAndPort
from rollbook.projections.state.worker import Phase

W = "rollout-0-0"
POLICY = HealthPolicy(interval=1.0, jitter=0.1, first_wait=60.0, timeout=2.0)


class Scene:
    """A log, a provider, workers that answer as the test says, and monitors over them."""

    def __init__(self, policy=POLICY):
        self.clock = LoopClock()
        self.rng = random.Random(1)
        self.ids = SeededIds(self.rng)
        self.log = MemoryLog(self.clock, self.rng)
        self.provider = MemoryProvider(self.clock)
        self.policy = policy
        self.answers = {}
        """By worker: a finding, or seconds after which it is OK."""
        self.asked = []
        self.told = []
        self.monitors = []
        self.tasks = []

    async def check(self, subject):
        self.asked.append(subject)
        answer = self.answers.get(subject.name, OK)
        if isinstance(answer, asyncio.Event):
            await answer.wait()
            return Finding(Outcome.SLOW, "far too late")
        return answer

    def monitor(self, name="monitor-1"):
        monitor = Monitor(
            {"rollout": Watched(policy=self.policy, check=self.check, url="http://{primary}")},
            projector=Projector(self.log, CODEC, self.clock),
            verdicts=Verdicts(FLEET, self.log, self.clock, self.ids, name),
            provider=self.provider,
            clock=self.clock,
            rng=self.rng,
            tell=lambda event, **keys: self.told.append((event, keys)),
        )
        self.monitors.append(monitor)
        self.tasks.append(asyncio.create_task(monitor.run()))
        return monitor

    def place(self, worker=W, incarnation=1):
        addresses = {"primary": HostAndPort("10.0.0.1", 8000)}
        self.provider.place(worker, incarnation=incarnation, addresses=addresses)

    async def say(self, *facts):
        return [(await self.log.append([drafted(fact, self.ids.new())]))[0] for fact in facts][-1]

    async def up(self, worker=W, incarnation=1):
        self.place(worker, incarnation)
        await self.say(WorkerUp(worker=worker, incarnation=incarnation))

    def said(self):
        """What monitors said."""
        found = []
        for stored in self.log.messages:
            recorded = CODEC.decode(stored.payload, subject=stored.subject, sequence=stored.sequence)
            if "/monitor-" in recorded.source:
                found.append(recorded.fact)
        return found

    def kinds(self):
        return [type(fact) for fact in self.said()]

    @property
    def worker(self):
        return self.monitors[0]._projector.state.roster.workers[W]

    async def until(self, condition, seconds=100):
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.05)


@asynccontextmanager
async def scene(policy=POLICY, monitors=1):
    found = Scene(policy)
    for number in range(monitors):
        found.monitor(f"monitor-{number + 1}")
    try:
        yield found
    finally:
        for task in found.tasks:
            if task.done():
                task.result()
        await end(*found.tasks)


FAILING = Finding(Outcome.UNHEALTHY, "500")


@on_virtual_time
async def test_a_worker_that_fails_is_suspected_then_down_then_up_again():
    async with scene() as fleet:
        await fleet.up()
        await fleet.until(lambda: len(fleet.asked) > 3)
        assert fleet.said() == []
        fleet.answers[W] = FAILING
        await fleet.until(lambda: fleet.worker.phase is Phase.DOWN)
        suspected, down = fleet.said()
        assert isinstance(suspected, WorkerSuspected)
        assert suspected.reason == "500"
        assert isinstance(down, WorkerDown)
        assert (down.evidence, down.reason, down.incarnation) == ("unhealthy", "500 (3 times)", 1)
        del fleet.answers[W]
        await fleet.until(lambda: fleet.worker.phase is Phase.SERVING)
        assert fleet.kinds() == [WorkerSuspected, WorkerDown, WorkerUp]
        await asyncio.sleep(20)
        assert len(fleet.said()) == 3


@on_virtual_time
async def test_one_that_was_only_not_listed_is_up_by_the_first_word_of_who_has_seen_that():
    """Its Down stands on the fleet's subject, beyond whatever stands on its own."""
    async with scene() as fleet:
        await fleet.up()
        await fleet.until(lambda: fleet.asked)
        as_of = (await fleet.log.state()).last_sequence
        await fleet.say(FleetObserved(observer="ray", pools=("rollout",), as_of=as_of, workers=()))
        await fleet.until(lambda: fleet.worker.phase is Phase.DOWN)
        await fleet.until(lambda: fleet.worker.phase is Phase.SERVING)
        await asyncio.sleep(10)
        assert fleet.kinds() == [WorkerUp]


@on_virtual_time
async def test_a_suspicion_that_proves_wrong_is_taken_back():
    async with scene() as fleet:
        await fleet.up()
        await fleet.until(lambda: fleet.asked)
        fleet.answers[W] = FAILING
        await fleet.until(lambda: fleet.worker.suspicion == "500")
        del fleet.answers[W]
        await fleet.until(lambda: fleet.worker.suspicion is None)
        assert fleet.kinds() == [WorkerSuspected, WorkerUp]
        assert fleet.worker.phase is Phase.SERVING


@on_virtual_time
async def test_a_starting_worker_is_up_when_it_answers_and_may_take_its_time():
    async with scene() as fleet:
        fleet.place()
        fleet.answers[W] = Finding(Outcome.REFUSED, "refused")
        await fleet.say(WorkerStarted(worker=W, incarnation=1))
        await asyncio.sleep(50)
        assert fleet.said() == []
        assert len(fleet.asked) > 40
        del fleet.answers[W]
        await fleet.until(lambda: fleet.worker.phase is Phase.SERVING, 5)


@pytest.mark.parametrize("facts", [[WorkerUp(worker=W, incarnation=2)], [WorkerSuspended(worker=W, incarnation=1)]])
@on_virtual_time
async def test_a_slow_probe_shoots_nobody_who_changed_meanwhile(facts):  # I3
    policy = HealthPolicy(interval=1.0, slow_threshold=1, timeout=30.0)
    async with scene(policy) as fleet:
        await fleet.up()
        await fleet.until(lambda: fleet.asked)
        fleet.answers[W] = asyncio.Event()
        before = len(fleet.asked)
        await fleet.until(lambda: len(fleet.asked) > before)
        fleet.place(incarnation=facts[0].incarnation)
        await fleet.say(*facts)
        fleet.answers.pop(W).set()
        await asyncio.sleep(20)
        assert fleet.said() == []


@on_virtual_time
async def test_what_the_monitor_has_not_heard_of_supersedes_its_verdict_too():  # I3
    """An operator's decision, between the beginning of the probe and its verdict, that is not folded here yet."""
    async with scene(HealthPolicy(interval=1.0, unhealthy_threshold=1)) as fleet:
        await fleet.up()
        await fleet.until(lambda: fleet.asked)
        verdicts = fleet.monitors[0]._verdicts
        as_of = (await fleet.log.state()).last_sequence
        await fleet.say(WorkerCordoned(worker=W, by="ann", why="test"))
        down = WorkerDown(worker=W, incarnation=1, evidence="unhealthy")
        assert await verdicts.write(down, as_of=as_of) is None
        assert await verdicts.write(down, as_of=as_of + 1) == as_of + 2
        assert await verdicts.write(down, as_of=as_of + 1) is None
        assert [fact.seen for fact in fleet.said()] == [as_of + 1]


@pytest.mark.parametrize("sleeper", [W, "rollout-0-1"])
@on_virtual_time
async def test_i3_who_sleeps_is_not_asked_nor_is_the_rest_of_his_cell_until_he_wakes(sleeper):
    async with scene() as fleet:
        cell = {"cell_size": 2, "cell_incarnation": 1}
        fleet.place()
        await fleet.say(*(WorkerUp(worker=name, incarnation=1, **cell) for name in (W, "rollout-0-1")))
        await fleet.until(lambda: fleet.asked)
        await fleet.say(WorkerSuspended(worker=sleeper, incarnation=1, reason="weights"))
        await asyncio.sleep(1)
        fleet.answers[W] = FAILING
        before = len(fleet.asked)
        await asyncio.sleep(100)
        assert len(fleet.asked) == before
        del fleet.answers[W]
        await fleet.say(WorkerResumed(worker=sleeper, incarnation=1))
        await fleet.until(lambda: len(fleet.asked) > before, 5)
        assert fleet.said() == []


@pytest.mark.parametrize("sleeper", [W, "rollout-0-1"])
@on_virtual_time
async def test_i3_an_answer_from_a_time_of_sleep_counts_for_nothing(sleeper):
    """The probe began before, and ended after. Of another rank's sleep the worker's own subject says nothing."""
    async with scene(HealthPolicy(interval=1.0, slow_threshold=2, timeout=30.0, first_wait=0.0)) as fleet:
        cell = {"cell_size": 2, "cell_incarnation": 1}
        fleet.place()
        await fleet.say(*(WorkerUp(worker=name, incarnation=1, **cell) for name in (W, "rollout-0-1")))
        fleet.answers[W] = Finding(Outcome.SLOW, "slow")
        await fleet.until(lambda: fleet.kinds() == [WorkerSuspected])
        before = len(fleet.asked)
        fleet.answers[W] = asyncio.Event()
        await fleet.until(lambda: len(fleet.asked) > before)
        await fleet.say(WorkerSuspended(worker=sleeper, incarnation=1, reason="weights"))
        await asyncio.sleep(1)
        await fleet.say(WorkerResumed(worker=sleeper, incarnation=1))
        await asyncio.sleep(1)
        asleep, fleet.answers[W] = fleet.answers[W], Finding(Outcome.SLOW, "slow")
        before = len(fleet.asked)
        asleep.set()
        await fleet.until(lambda: len(fleet.asked) > before)
        await asyncio.sleep(0.1)
        assert WorkerDown not in fleet.kinds()
        await fleet.until(lambda: fleet.worker.phase is Phase.DOWN)
        assert len(fleet.asked) == before + 2


@on_virtual_time
async def test_nobody_is_asked_after_the_run_or_after_an_exit():
    async with scene() as fleet:
        await fleet.up()
        await fleet.up("rollout-1-0")
        await fleet.say(WorkerDown(worker=W, incarnation=1, evidence="exited"))
        await fleet.until(lambda: fleet.asked)
        assert {one.name for one in fleet.asked} == {"rollout-1-0"}
        await fleet.say(FleetEnded(run_id="r"))
        await asyncio.sleep(1)
        before = len(fleet.asked)
        await asyncio.sleep(50)
        assert len(fleet.asked) == before
        assert fleet.monitors[0].watching == 0


@on_virtual_time
async def test_what_cannot_be_asked_is_unknown_and_never_dead():
    async with scene() as fleet:
        await fleet.up()
        await fleet.until(lambda: fleet.asked)
        fleet.answers[W] = FAILING
        fleet.provider.available = False
        await asyncio.sleep(60)
        fleet.provider.available = True
        fleet.place(incarnation=7)  # the provider is ahead of the log
        await asyncio.sleep(60)
        fleet.place(incarnation=1)
        fleet.answers[W] = Finding(Outcome.UNKNOWN, "no descriptors left")
        await asyncio.sleep(60)
        assert fleet.said() == []
        reasons = [keys["reason"] for event, keys in fleet.told if event == "monitor.unknown"]
        assert len(reasons) == 3  # each once, however often it is asked
        assert reasons[-1] == "no descriptors left"
        del fleet.answers[W]
        await fleet.until(lambda: fleet.told[-1][0] == "monitor.known_again", 5)


@pytest.mark.parametrize("broken", [RuntimeError("a defect"), None])
@on_virtual_time
async def test_a_provider_that_breaks_or_answers_nonsense_ends_no_monitor(broken):  # I10
    async with scene() as fleet:
        await fleet.up()
        await fleet.until(lambda: fleet.asked)
        whole = fleet.provider.locate

        async def locate(_):
            if broken is not None:
                raise broken

        fleet.provider.locate = locate
        fleet.answers[W] = FAILING
        await fleet.until(lambda: fleet.told[-1][0] == "monitor.unknown")
        await asyncio.sleep(20)
        assert fleet.said() == []
        fleet.provider.locate = whole
        await fleet.until(lambda: fleet.worker.phase is Phase.DOWN)


@pytest.mark.parametrize("reason", ["no such file: \udcff", "\udcff" * 1_000_000])
@on_virtual_time
async def test_a_worker_is_down_whatever_letters_the_reason_has(reason):
    async with scene() as fleet:
        await fleet.up()
        await fleet.until(lambda: fleet.asked)
        fleet.answers[W] = Finding(Outcome.UNHEALTHY, reason)
        await fleet.until(lambda: fleet.worker.phase is Phase.DOWN)
        assert "\\udcff" in fleet.said()[-1].reason


@on_virtual_time
async def test_an_outage_of_the_log_delays_a_verdict_and_loses_none():
    async with scene() as fleet:
        await fleet.up()
        await fleet.until(lambda: fleet.asked)
        fleet.answers[W] = FAILING
        fleet.log.faults = LogFaults(refuse=1.0)
        await asyncio.sleep(30)
        assert fleet.said() == []
        fleet.log.faults = LogFaults()
        await fleet.until(lambda: fleet.worker.phase is Phase.DOWN, 10)


@on_virtual_time
async def test_three_monitors_say_together_what_one_would_say():
    async with scene(monitors=3) as fleet:
        await fleet.up()
        await fleet.until(lambda: len(fleet.asked) > 6)
        for _ in range(5):
            before = len(fleet.said())
            fleet.answers[W] = FAILING
            await fleet.until(lambda: fleet.worker.phase is Phase.DOWN)
            del fleet.answers[W]
            await fleet.until(lambda: fleet.worker.phase is Phase.SERVING)
            await asyncio.sleep(10)
            assert fleet.kinds()[before:] == [WorkerSuspected, WorkerDown, WorkerUp]


@on_virtual_time
async def test_a_check_that_raises_or_hangs_is_a_finding():
    async with scene() as fleet:
        await fleet.up()
        await fleet.until(lambda: fleet.asked)
        fleet.answers[W] = asyncio.Event()
        await fleet.until(lambda: fleet.worker.suspicion == "no answer within 2 s")
        monitor = fleet.monitors[0]

        async def broken(_):
            raise ValueError("a defect")

        monitor._pools["rollout"] = Watched(policy=POLICY, check=broken, url="http://{primary}")
        await fleet.until(lambda: fleet.worker.phase is Phase.DOWN)
        assert fleet.said()[-1].reason == "the check raised ValueError: a defect (3 times)"


@on_virtual_time
async def test_a_failed_deep_probe_is_not_talked_away_by_shallow_ones():
    policy = HealthPolicy(interval=1.0, deep="sglang", deep_every=10, deep_timeout=3.0)

    class Hanging(Scene):
        async def check(self, subject):
            self.asked.append(subject)
            if subject.deep and self.answers:
                await asyncio.sleep(1000)
            return OK

    fleet = Hanging(policy)
    fleet.monitor()
    try:
        await fleet.up()
        await fleet.until(lambda: len(fleet.asked) == 22)
        assert [number for number, one in enumerate(fleet.asked) if one.deep] == [0, 10, 20]
        fleet.answers[W] = "hangs"
        await fleet.until(lambda: fleet.worker.phase is Phase.DOWN)
        assert fleet.said()[-1].evidence == "timeout"
        assert [one.deep for one in fleet.asked[-4:]] == [False, True, True, True]
    finally:
        await end(*fleet.tasks)
