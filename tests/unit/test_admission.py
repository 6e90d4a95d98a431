"""Admission: what is asked before an add, in which order, and that a silent answer is no answer."""

import asyncio

import pytest
from support.core import folded
from support.fleet import Fleet, W, on_virtual_time

from rollbook.events import WeightsLoaded, WeightsPublished, WorkerUp
from rollbook.projections.deciding.gates import Gate, Held
from rollbook.projections.lanes.admission import Admission, Site
from rollbook.projections.policy import Policy, PoolPolicy, ProxyPolicy
from rollbook.projections.ports import HostAndPort, Identity

UP = WorkerUp(worker=W, incarnation=2)
SERVED = ProxyPolicy(name="a", pools=("rollout",))


def admission(fleet, *facts, pool=None):
    state = folded(*(facts or (UP,)))
    policy = Policy(fleet="f", pools={"rollout": pool or PoolPolicy()}, proxies={}, reconcile=fleet.policy.reconcile)
    return Admission(policy, lambda: state.roster, fleet.provider, fleet.readiness), state


async def gate_of(asked, incarnation=2, canonical=str):
    found = await asked.locate(W, incarnation, SERVED, canonical)
    return found.gate if isinstance(found, Held) else found.url


@on_virtual_time
async def test_gates_are_asked_in_their_order_and_each_time_anew():
    """[I6]: nothing is kept from one question to the next."""
    fleet = Fleet()
    asked, state = admission(fleet, UP, WeightsPublished(pool="rollout", version=3))
    assert await gate_of(asked) is Gate.WEIGHTS_CURRENT
    state.roster.workers[W].weights = 3
    assert (await asked.locate(W, 2, SERVED, str)) == Held(Gate.ADDRESS_KNOWN, "the provider does not know it")
    fleet.place(incarnation=1)
    assert "answers for incarnation 1" in (await asked.locate(W, 2, SERVED, str)).reason
    fleet.place(incarnation=2)
    assert await gate_of(asked) == "http://10.0.0.1:8000"
    fleet.place(incarnation=2, port=9000)
    assert await gate_of(asked) == "http://10.0.0.1:9000"
    fleet.provider.kill(W)
    assert "dead" in (await asked.locate(W, 2, SERVED, str)).reason


@on_virtual_time
async def test_another_life_than_the_current_one_is_not_located():
    """[I2]."""
    fleet = Fleet()
    asked, _ = admission(fleet)
    fleet.place(incarnation=2)
    for incarnation in (1, 3):
        assert await gate_of(asked, incarnation) is Gate.SERVING
    assert (await asked.locate("nobody", 1, SERVED, str)).gate is Gate.SERVING


@on_virtual_time
async def test_a_life_that_ends_while_its_address_is_asked_for_is_held_back():
    """[I2]: even if the provider answers for any life."""
    fleet = Fleet()
    asked, state = admission(fleet)
    fleet.place(incarnation=0)
    fleet.provider.seconds = 1
    asking = asyncio.create_task(asked.locate(W, 2, SERVED, str))
    await asyncio.sleep(0.5)
    state.roster.workers[W].incarnation = 3
    assert (await asking).reason == "incarnation 2 ended while its address was asked for"


@pytest.mark.parametrize(
    ("available", "seconds", "reason"),
    [(False, 0, "unavailable"), (True, 60, "the provider gave no answer within 3 s")],
)
@on_virtual_time
async def test_a_provider_that_does_not_answer_says_nothing_about_the_worker(available, seconds, reason):
    fleet = Fleet()
    asked, _ = admission(fleet)
    fleet.place(incarnation=2)
    fleet.provider.available, fleet.provider.seconds = available, seconds
    held = await asked.locate(W, 2, SERVED, str)
    assert (held.gate, reason in held.reason) == (Gate.ADDRESS_KNOWN, True)


@on_virtual_time
async def test_the_proxys_spelling_is_used_and_what_it_cannot_spell_is_held_back():
    fleet = Fleet()
    fleet.provider.place(W, incarnation=2, addresses={"primary": HostAndPort("TEN.example", 80)})
    asked, _ = admission(fleet)
    assert await gate_of(asked, canonical=fleet.proxy.canonical_url) == "http://ten.example"

    def refuse(url):
        raise ValueError("a fragment")

    held = await asked.locate(W, 2, SERVED, refuse)
    assert held.reason == "'http://TEN.example:80' cannot be registered: a fragment"


@on_virtual_time
async def test_readiness_is_asked_at_the_path_of_the_pool():
    fleet = Fleet()
    url = fleet.place(incarnation=2)
    paths = []
    check = fleet.readiness.check

    async def noted(url, path, identity):
        paths.append(path)
        return await check(url, path, identity)

    fleet.readiness.check = noted
    asked, _ = admission(fleet, pool=PoolPolicy(ready_path="/ready"))
    assert await asked.ready(W, Site(url)) is None
    fleet.readiness.serve(url, "503 busy")
    assert await asked.ready(W, Site(url)) == Held(Gate.READY, "503 busy")
    fleet.readiness.seconds = 60
    assert await asked.ready(W, Site(url)) == Held(Gate.READY, "GET /ready: no answer within 3 s")
    nothing, _ = admission(fleet, pool=PoolPolicy(ready_path=None))
    assert await nothing.ready(W, Site(url)) is None
    assert paths == ["/ready"] * 3


@on_virtual_time
async def test_weights_at_the_bar_pass():
    fleet = Fleet()
    fleet.place(incarnation=2)
    asked, _ = admission(
        fleet, UP, WeightsPublished(pool="rollout", version=3), WeightsLoaded(worker=W, incarnation=2, version=3)
    )
    assert await gate_of(asked) == "http://10.0.0.1:8000"


@on_virtual_time
async def test_a_provider_that_fails_in_its_own_way_holds_one_worker_back_and_nothing_else():
    """[I10]: what is not a `ProviderError` would otherwise end the controller."""
    fleet = Fleet()
    asked, _ = admission(fleet)

    async def broken(names):
        raise KeyError(*names)

    fleet.provider.locate = broken
    assert await asked.locate(W, 2, SERVED, str) == Held(Gate.ADDRESS_KNOWN, f"the provider failed: KeyError: {W!r}")


@on_virtual_time
async def test_an_address_that_no_fact_can_hold_is_held_back():
    fleet = Fleet()
    asked, _ = admission(fleet)
    fleet.provider.place(W, incarnation=2, addresses={"primary": HostAndPort("h" * 3000, 1)})
    held = await asked.locate(W, 2, SERVED, str)
    assert held == Held(Gate.ADDRESS_KNOWN, "its url has 3009 letters; 2048 are allowed")


@on_virtual_time
async def test_a_probe_that_fails_in_its_own_way_is_a_worker_that_is_not_ready():
    """[I10]."""
    fleet = Fleet()
    asked, _ = admission(fleet)

    async def broken(url, path, identity):
        raise KeyError(path)

    fleet.readiness.check = broken
    assert await asked.ready(W, Site("http://h:1")) == Held(Gate.READY, "GET /health failed: KeyError: '/health'")


@on_virtual_time
async def test_a_stranger_on_a_reused_port_is_not_ready():
    """[I3]: the address answers, but it is another worker."""
    fleet = Fleet()
    asked, _ = admission(fleet)
    url = fleet.place(incarnation=2, identity=Identity(W, header="x-worker"))
    site = await asked.locate(W, 2, SERVED, str)
    fleet.readiness.serve(url, who="rollout-9-0")
    assert "another worker" in (await asked.ready(W, site)).reason
    fleet.readiness.serve(url, who=W)
    assert await asked.ready(W, site) is None


@on_virtual_time
async def test_a_bootstrap_address_goes_with_the_worker_and_a_missing_one_holds_it_back():
    fleet = Fleet()
    asked, _ = admission(fleet, pool=PoolPolicy(role="prefill", bootstrap="kv"))
    fleet.place(incarnation=2)
    held = await asked.locate(W, 2, SERVED, str)
    assert held == Held(Gate.ADDRESS_KNOWN, "it has no address named 'kv', to bootstrap from")
    addresses = {"primary": HostAndPort("h", 1), "kv": HostAndPort("h", 9)}
    fleet.provider.place(W, incarnation=2, addresses=addresses)
    assert await asked.locate(W, 2, SERVED, str) == Site("http://h:1", 9)


@on_virtual_time
async def test_i12_nothing_is_judged_before_the_provider_was_listed_once():
    fleet = Fleet()
    asked, _ = admission(fleet)
    fleet.provider.available = False
    assert "the provider has not been listed yet" in await asked.not_listed_yet()
    fleet.provider.seconds = 60
    asking = [asyncio.create_task(asked.not_listed_yet()) for _ in range(50)]
    began = fleet.clock.monotonic()
    reasons = {await one for one in asking}
    assert reasons == {"the provider has not been listed yet: no answer within 3 s"}
    assert fleet.clock.monotonic() - began == 3
    fleet.provider.available, fleet.provider.seconds = True, 0
    assert await asked.not_listed_yet() is None
    fleet.provider.available = False
    assert await asked.not_listed_yet() is None


@on_virtual_time
async def test_i12_a_worker_is_asked_itself_whether_it_is_there():
    fleet = Fleet()
    asked, _ = admission(fleet)
    url = fleet.place(incarnation=2, identity=Identity(W, header="x-worker"))
    fleet.readiness.serve(url, who=W)
    assert await asked.absent(W, url) is None
    fleet.readiness.serve(url, who="rollout-9-0")
    assert "another worker" in await asked.absent(W, url)
    fleet.provider.available = False
    assert await asked.absent(W, url) is None, "who cannot be told apart is asked whether anybody is there"
    fleet.readiness.close(url)
    assert "refused" in await asked.absent(W, url)
    unasked, _ = admission(fleet, pool=PoolPolicy(ready_path=None))
    assert await unasked.absent(W, url) is None
