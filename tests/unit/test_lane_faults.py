"""A lane on virtual time, with proxies that refuse, hang, lie, forget and lose their answers."""

import asyncio
import itertools
import random

import pytest
from support.core import FLEET
from support.fleet import NEVER, Fleet, W, on_virtual_time

from rollbook.adapters.memory.faults import ProxyFaults
from rollbook.events import (
    Deregistered,
    Deregistering,
    DriftFound,
    InvalidFact,
    ProxyReachable,
    ProxyUnreachable,
    Registered,
    Registering,
    RegistrationFailed,
    WorkerDown,
    WorkerUp,
)
from rollbook.projections.policy import PoolPolicy, ProxyPolicy
from rollbook.projections.ports import Failed, HostAndPort, Listing, Target


class Longest(random.Random):
    """Draws the longest pause every time."""

    def uniform(self, a, b):
        return b


def spans(moments):
    return [round(later - earlier, 6) for earlier, later in itertools.pairwise(moments)]


@on_virtual_time
async def test_pauses_between_tries_grow_to_the_most_and_begin_anew_after_a_success():
    fleet = Fleet(resync=NEVER, backoff_first=0.5, backoff_most=6)
    fleet.proxy.faults = ProxyFaults(fail_job=1)
    await fleet.start(rng=Longest())
    await fleet.until(lambda: fleet.facts(ProxyReachable))
    await fleet.up()
    await fleet.until(lambda: len(fleet.calls("add")) == 8)
    pauses = spans([call.at for call in fleet.calls("add")])
    assert pauses == pytest.approx([0.5, 1, 2, 4, 6, 6, 6], abs=0.01)
    assert [fact.failures for fact in fleet.controller.projector.state.ledger.look("a").registrations[W].values()] == [
        8
    ]
    fleet.proxy.faults = ProxyFaults()
    await fleet.registered()
    fleet.proxy.faults = ProxyFaults(fail_job=1)
    await fleet.up(incarnation=2)
    await fleet.until(lambda: len(fleet.calls("add")) == 12)
    assert spans([call.at for call in fleet.calls("add")])[-2:] == pytest.approx([0.5, 1], abs=0.01)


@on_virtual_time
async def test_jitter_draws_each_pause_from_the_whole_range():
    fleet = Fleet(resync=NEVER, backoff_first=1, backoff_most=1)
    fleet.proxy.faults = ProxyFaults(fail_job=1)
    await fleet.start()
    await fleet.until(lambda: fleet.facts(ProxyReachable))
    await fleet.up()
    await fleet.until(lambda: len(fleet.calls("add")) == 60)
    pauses = spans([call.at for call in fleet.calls("add")])
    assert max(pauses) < 1.01
    assert min(pauses) < 0.2
    assert max(pauses) > 0.8


@on_virtual_time
async def test_a_proxy_that_was_away_for_long_gets_back_what_it_lost_within_resync():
    """[I1] A router that restarted empty serves nothing until it is read: its probe does not grow rarer than that."""
    fleet = Fleet(resync=2, backoff_first=0.5, backoff_most=60)
    await fleet.start(rng=Longest())
    await fleet.up()
    await fleet.registered()
    fleet.proxy.available = False
    await fleet.clock.sleep(100)
    fleet.proxy.available = True
    fleet.proxy.restart()
    back = fleet.clock.monotonic()
    await fleet.until(lambda: len(fleet.proxy.listed) == 1)
    assert fleet.clock.monotonic() - back < 2.5


@on_virtual_time
async def test_an_unreachable_proxy_has_one_probe_and_is_written_down_once():
    """Not one retry per worker."""
    fleet = Fleet()
    await fleet.start()
    await fleet.until(lambda: fleet.facts(ProxyReachable))
    fleet.proxy.available = False
    for number in range(50):
        await fleet.up(f"rollout-{number}-0", port=8000 + number)
    fleet.proxy.calls.clear()
    await asyncio.sleep(300)
    assert {call.verb for call in fleet.proxy.calls} == {"list"}
    assert len(fleet.proxy.calls) < 100
    assert len(fleet.facts(ProxyUnreachable)) == 1
    fleet.proxy.available = True
    await fleet.until(lambda: len(fleet.listed()) == 50)
    await asyncio.sleep(60)
    assert len(fleet.facts(ProxyReachable)) == 2
    assert len(fleet.facts(ProxyUnreachable)) == 1


@on_virtual_time
async def test_a_hanging_call_ends_with_its_deadline():
    fleet = Fleet(call_deadline=3, resync=NEVER)
    await fleet.start()
    await fleet.up()
    await fleet.registered()
    began = fleet.clock.monotonic()
    fleet.proxy.on_call = lambda *_: setattr(fleet.proxy, "stalled", True)
    await fleet.up("rollout-1-0", port=8001)
    await fleet.until(lambda: fleet.facts(RegistrationFailed))
    assert fleet.clock.monotonic() - began == pytest.approx(3, abs=0.1)
    assert fleet.facts(RegistrationFailed)[0].reason == "no answer, effect unknown: add: no answer within 3 s"
    await fleet.until(lambda: fleet.facts(ProxyUnreachable), 10)
    assert fleet.facts(ProxyUnreachable)[0].reason == "a: list: no answer within 3 s"
    fleet.proxy.on_call, fleet.proxy.stalled = None, False
    await fleet.registered("rollout-1-0")


@pytest.mark.parametrize("broken", ["stalled", "unreachable", "slow"])
@on_virtual_time
async def test_a_broken_proxy_delays_no_other(broken):
    """[I10]: the other lane does all it does at the same moments as if it were alone."""
    moments = []
    for names in (("b",), ("a", "b")):
        fleet = Fleet(*names)
        if "a" in fleet.proxies:
            fleet.proxies["a"].stalled = broken == "stalled"
            fleet.proxies["a"].available = broken != "unreachable"
            fleet.proxies["a"].faults = ProxyFaults(slowest_call=60 if broken == "slow" else 0)
        await fleet.start()
        began = fleet.clock.monotonic()
        for number in range(5):
            await fleet.up(f"rollout-{number}-0", port=8000 + number)
        await fleet.until(lambda fleet=fleet: len(fleet.listed("b")) == 5)
        await fleet.down("rollout-0-0")
        await fleet.until(lambda fleet=fleet: len(fleet.listed("b")) == 4)
        moments.append(round(fleet.clock.monotonic() - began, 3))
        await fleet.stop()
    assert moments[0] == moments[1]
    assert moments[0] < 1


@on_virtual_time
async def test_an_add_whose_answer_is_lost_is_not_made_twice():
    """What it did is unknown, and is read back."""
    fleet = Fleet()
    await fleet.start()
    await fleet.until(lambda: fleet.facts(ProxyReachable))
    fleet.proxy.on_call = lambda *_: setattr(fleet.proxy, "faults", ProxyFaults(lose_answer=1))
    fleet.proxy.on_effect = lambda *_: setattr(fleet.proxy, "faults", ProxyFaults())
    await fleet.up()
    await fleet.registered()
    assert len(fleet.calls("add")) == 1
    assert "effect unknown" in fleet.facts(RegistrationFailed)[0].reason
    assert len(fleet.facts(Registered)) == 1


@on_virtual_time
async def test_a_promise_that_is_not_kept_is_not_a_registration():
    fleet = Fleet(confirm_deadline=2)
    fleet.proxy.faults = ProxyFaults(lie=1)
    await fleet.start()
    await fleet.up()
    await fleet.until(lambda: fleet.facts(RegistrationFailed))
    assert fleet.facts(RegistrationFailed)[0].reason == "not seen within 2 s"
    assert fleet.facts(Registered) == []
    fleet.proxy.faults = ProxyFaults()
    await fleet.registered()


@on_virtual_time
async def test_a_removal_that_is_not_carried_out_is_not_a_deregistration():
    fleet = Fleet(confirm_deadline=2)
    await fleet.start()
    await fleet.up()
    await fleet.registered()
    fleet.proxy.faults = ProxyFaults(lie=1)
    await fleet.down()
    await fleet.until(lambda: fleet.facts(RegistrationFailed))
    assert fleet.facts(Deregistered) == []
    fleet.proxy.faults = ProxyFaults()
    await fleet.until(lambda: fleet.facts(Deregistered) and not fleet.listed())


@on_virtual_time
async def test_a_proxy_that_reports_every_entry_twice_loses_none():
    """[I4]."""
    fleet = Fleet(resync=2)
    listed = fleet.proxy.list

    async def twice():
        listing = await listed()
        return Listing(listing.entries * 2, listing.version)

    fleet.proxy.list = twice
    await fleet.start()
    names = await fleet.pool_up(4)
    await asyncio.sleep(30)
    assert fleet.calls("remove") == []
    await fleet.down(names[0])
    await fleet.until(lambda: len(fleet.listed()) == 3)
    await asyncio.sleep(10)
    assert len(fleet.calls("remove")) == 1


@on_virtual_time
async def test_every_proxy_has_its_own_deadline_for_calls_and_listings():
    fleet = Fleet("a", "b", served={"call_deadline": 1.5})
    fleet.policy.proxies["b"] = ProxyPolicy(name="b", pools=("rollout",))
    await fleet.start()
    await fleet.up()
    for name in ("a", "b"):
        await fleet.registered(proxy=name)
        fleet.proxies[name].stalled = True
    await fleet.until(lambda: len(fleet.facts(ProxyUnreachable)) == 2)
    reasons = {fact.proxy: fact.reason for fact in fleet.facts(ProxyUnreachable)}
    assert reasons == {"a": "a: list: no answer within 1.5 s", "b": "b: list: no answer within 3 s"}


@on_virtual_time
async def test_a_target_says_what_the_pool_is_for():
    fleet = Fleet()
    fleet.policy.pools["rollout"] = PoolPolicy(role="prefill", bootstrap="kv", model="qwen3-8b")
    await fleet.start()
    fleet.readiness.serve("http://10.0.0.1:8000")
    addresses = {"primary": HostAndPort("10.0.0.1", 8000), "kv": HostAndPort("10.0.0.1", 9998)}
    fleet.provider.place(W, incarnation=1, addresses=addresses)
    await fleet.say(WorkerUp(worker=W, incarnation=1))
    await fleet.registered()
    [call] = fleet.calls("add")
    assert call.what == Target(
        worker=W,
        incarnation=1,
        url="http://10.0.0.1:8000",
        pool="rollout",
        role="prefill",
        bootstrap_port=9998,
        model="qwen3-8b",
    )


@on_virtual_time
async def test_a_proxy_that_forgets_everything_is_filled_again_within_the_read_back():
    fleet = Fleet(resync=4)
    await fleet.start()
    for number in range(8):
        await fleet.up(f"rollout-{number}-0", port=8000 + number)
    await fleet.until(lambda: len(fleet.facts(Registered)) == 8)
    fleet.proxy.restart()
    await fleet.until(lambda: len(fleet.listed()) == 8, 5)


@pytest.mark.parametrize(
    ("worker", "incarnation"), [("no such name", 1), ("a.b", 2), ("", 1), (W, 0), (W, -1), ("x" * 500, 1)]
)
@on_virtual_time
async def test_tags_that_nobody_of_ours_has_are_foreign_and_stop_nothing(worker, incarnation):
    """[I10]."""
    fleet = Fleet()
    fleet.proxy.put("http://10.9.9.9:1", fleet="f", worker=worker, incarnation=incarnation)
    await fleet.start()
    await fleet.up()
    await fleet.registered()
    await asyncio.sleep(30)
    assert fleet.facts(DriftFound)[0].foreign == ("http://10.9.9.9:1",)
    assert not fleet.running.done()


@on_virtual_time
async def test_a_listing_longer_than_a_message_stops_nothing():
    """[I10]."""
    fleet = Fleet()
    await fleet.start()
    for number in range(5000):
        fleet.proxy.put(f"http://{number}.{'x' * 500}:1")
    await fleet.up()
    await fleet.registered()
    await fleet.until(lambda: fleet.facts(DriftFound))
    assert len(fleet.facts(DriftFound)[0].foreign) == 500


@on_virtual_time
async def test_a_proxy_that_raises_what_it_must_not_is_unreachable():
    """[I10]: whatever goes wrong inside it."""
    fleet = Fleet()
    await fleet.start()
    await fleet.until(lambda: fleet.facts(ProxyReachable))

    async def broken() -> Listing:
        raise ZeroDivisionError("a bug")

    fleet.proxy.list = broken
    await fleet.up()
    await fleet.until(lambda: fleet.facts(ProxyUnreachable))
    assert fleet.facts(ProxyUnreachable)[0].reason == "a: list: ZeroDivisionError: a bug"
    del fleet.proxy.list
    await fleet.registered()


@on_virtual_time
async def test_a_slow_provider_or_worker_holds_back_only_its_own_worker():
    fleet = Fleet(call_deadline=2)
    await fleet.start()
    fleet.provider.seconds = 60
    await fleet.up()
    await fleet.until(lambda: W in fleet.controller.lanes["a"].held)
    assert fleet.controller.lanes["a"].held[W].reason == "the provider gave no answer within 2 s"
    fleet.provider.seconds = 0
    fleet.readiness.serve("http://10.0.0.1:8000", "503")
    await fleet.until(lambda: fleet.controller.lanes["a"].held[W].gate == "ready")
    await fleet.up("rollout-1-0", port=8001)
    await fleet.registered("rollout-1-0")
    assert fleet.facts(Registering)[0].worker == "rollout-1-0"
    fleet.provider.available = False
    await asyncio.sleep(60)
    assert [entry[0] for entry in fleet.listed()] == ["rollout-1-0"]


@pytest.mark.parametrize(("url", "incarnation"), [("http://h/" + "x" * 1_000_000, 1), ("http://h", 2**60)])
@on_virtual_time
async def test_i10_an_entry_that_no_fact_can_hold_is_foreign_and_stops_nothing(url, incarnation):
    """Anyone who can add to the router can write our labels."""
    fleet = Fleet()
    await fleet.start()
    fleet.proxy.put(url, fleet=FLEET, worker=W, incarnation=incarnation)
    await fleet.until(lambda: fleet.facts(DriftFound))
    assert fleet.facts(DriftFound)[0].foreign == (url[:200],)
    await fleet.up()
    await fleet.registered()


@on_virtual_time
async def test_i10_a_drift_of_the_worst_names_still_fits_into_a_fact():
    fleet = Fleet()
    await fleet.start()
    for number in range(600):
        fleet.proxy.put(f"{number}" + "\1" * 400)
    await fleet.until(lambda: fleet.facts(DriftFound))
    assert len(fleet.facts(DriftFound)[-1].foreign) == 500
    await fleet.up()
    await fleet.registered()


@on_virtual_time
async def test_i9_a_reason_of_any_length_stops_nobody():
    """The longest that a fact can hold does not fit into the Deregistering that it leads to."""
    fleet = Fleet()
    await fleet.start()
    await fleet.up()
    await fleet.registered()
    letters = 900_000
    while True:
        down = WorkerDown(worker=W, incarnation=1, evidence="exited", reason="x" * letters)
        try:
            await fleet.say(down)
            break
        except InvalidFact:
            letters -= 10
    await fleet.until(lambda: not fleet.listed())
    assert len(fleet.facts(Deregistering)[0].reason) == 500


@on_virtual_time
async def test_the_next_life_does_not_wait_for_the_failures_of_the_last():
    fleet = Fleet(resync=NEVER, backoff_first=0.5, backoff_most=60)
    fleet.proxy.faults = ProxyFaults(fail_job=1)
    await fleet.start(rng=Longest())
    await fleet.up()
    await fleet.until(lambda: len(fleet.calls("add")) == 8, 300)
    await fleet.down()
    await asyncio.sleep(1)
    await fleet.up(incarnation=2)
    await fleet.until(lambda: len(fleet.calls("add")) == 10)
    assert spans([call.at for call in fleet.calls("add")])[-1] == pytest.approx(0.5, abs=0.01)


@on_virtual_time
async def test_pauses_are_kept_also_after_a_step_that_takes_longer_than_the_read_back_comes_round():
    """As an add at a router that waits for the worker. It was tried again at once, for ever, and held its slot."""
    fleet = Fleet(resync=5.0, backoff_first=60, backoff_most=60, call_deadline=10.0)
    await fleet.start(rng=Longest())
    await asyncio.sleep(32)  # what slipped from a predecessor has landed by then, and was looked for once more
    begun = []

    async def add(_):
        begun.append(fleet.clock.monotonic())
        await asyncio.sleep(8)
        return Failed("the worker does not answer")

    fleet.proxy.add = add
    await fleet.up()
    await asyncio.sleep(600)
    assert spans(begun) == pytest.approx([68] * (len(begun) - 1), abs=0.1)
    assert len(begun) == 9


@on_virtual_time
async def test_a_lane_that_is_cancelled_once_more_while_it_ends_leaves_no_step_under_way():
    """[I7] Such a step waited for the log, and called the router when its process led again (simulation, seed 1467)."""
    fleet = Fleet(resync=NEVER)
    await fleet.start()
    fleet.proxy.faults = ProxyFaults(slowest_job=100.0)
    await fleet.up()
    await fleet.until(lambda: fleet.calls("add"))
    [lane] = [task for task in asyncio.all_tasks() if task.get_name() == "lane a"]
    lane.cancel()
    await asyncio.sleep(0)
    assert not lane.done()
    lane.cancel()
    await asyncio.wait([lane])
    assert not [task for task in asyncio.all_tasks() if "_fly" in task.get_coro().__qualname__]


@pytest.mark.parametrize("answers", ["two addresses", "dead or alive"])
@on_virtual_time
async def test_a_provider_that_answers_this_and_that_in_turns_fills_no_log(answers):
    """Right before the call it tells of another place than a moment ago: tried again, after pauses that grow."""
    fleet = Fleet()
    await fleet.start()
    whole, turns = fleet.provider.locate, itertools.count()

    async def in_turns(names):
        await asyncio.sleep(0.001)
        odd = next(turns) % 2
        if answers == "two addresses":
            fleet.place(port=8000 + odd)
        elif odd:
            return {}
        return await whole(names)

    fleet.place()
    fleet.provider.locate = in_turns
    await fleet.say(WorkerUp(worker=W, incarnation=1))
    await asyncio.sleep(30)
    failed = fleet.facts(RegistrationFailed)
    assert 2 < len(failed) < 100
    assert all(fact.reason.startswith("not called: ") and fact.retry_seconds is not None for fact in failed)
    assert fleet.calls("add") == []
    fleet.provider.locate = whole
    await fleet.registered()
