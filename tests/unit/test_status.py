"""What `status` shows: every standing with its reason, and that it agrees with what the lanes do."""

import asyncio

import pytest
from support.core import FLEET
from support.fleet import BY, Fleet, W, on_virtual_time

from rollbook.events import RecoveryFailed, RecoveryStarted, WorkerCordoned, WorkerDown
from rollbook.projections.deciding.gates import Gate
from rollbook.projections.lanes.admission import PROBES_IN_FLIGHT, Admission
from rollbook.projections.looking.logonly import NOTE, status_of
from rollbook.projections.looking.look import Look
from rollbook.projections.looking.status import Standing

OTHER = "rollout-1-0"


async def look(fleet):
    state = fleet.controller.projector.state
    admission = Admission(fleet.policy, lambda: state.roster, fleet.provider, fleet.readiness)
    taken = Look(fleet.policy, state, proxies=fleet.proxies, provider=fleet.provider, admission=admission)
    return await taken.take("now")


def standings(status):
    return {worker.name: [one.state for one in worker.registrations] for worker in status.workers}


@on_virtual_time
async def test_i1_what_the_lanes_have_brought_about_is_converged():
    fleet = Fleet("a", "b")
    await fleet.start()
    url = await fleet.up()
    for name in ("a", "b"):
        await fleet.registered(proxy=name)
    foreign = fleet.proxy.put("http://elsewhere:1")
    status = await look(fleet)
    assert status.converged
    (worker,) = status.workers
    assert (worker.phase, worker.incarnation, worker.address) == ("serving", 1, "10.0.0.1:8000")
    assert [(one.proxy, one.state, one.url) for one in worker.registrations] == [
        ("a", Standing.REGISTERED, url),
        ("b", Standing.REGISTERED, url),
    ]
    assert [(one.registered, one.wanted, one.foreign) for one in status.proxies] == [(1, 1, (foreign.url,)), (1, 1, ())]


@on_virtual_time
async def test_who_restarts_a_cell_and_what_came_of_it_is_told():
    fleet = Fleet()
    await fleet.start()
    await fleet.up()
    await fleet.say(WorkerDown(worker=W, incarnation=1, evidence="exited", reason="oom"))
    claim = RecoveryStarted(worker=W, incarnation=1, attempt=2, at="2026-01-01T00:00:00Z", until="2026-01-01T00:10:00Z")
    await fleet.say(claim)
    told = f"test restarts the cell of {W}, attempt 2, and has until 2026-01-01T00:10:00Z"
    assert (await look(fleet)).notes == (told,)
    by_the_log = status_of(fleet.controller.projector.state, fleet.policy, "now")
    assert by_the_log.notes == (NOTE, told)
    await fleet.say(RecoveryFailed(worker=W, incarnation=1, attempt=2, reason="no GPU"))
    (failed,) = (await look(fleet)).notes
    assert failed.startswith(f"the last restart of the cell of {W} failed: no GPU. A recoverer tries again")
    await fleet.say(WorkerCordoned(worker=W, **BY))
    assert (await look(fleet)).notes == ()  # the table of what was decided has it


@on_virtual_time
async def test_a_worker_that_a_gate_keeps_out_is_no_drift():
    fleet = Fleet()
    await fleet.start()
    await fleet.up()
    await fleet.registered()
    await fleet.say(WorkerCordoned(worker=W, **BY))
    await fleet.until(lambda: not fleet.listed())
    fleet.readiness.close(await fleet.up(OTHER, port=8001))
    await asyncio.sleep(5)
    status = await look(fleet)
    assert status.converged
    gates = {worker.name: worker.registrations[0].gate for worker in status.workers}
    assert gates == {W: Gate.NOT_CORDONED, OTHER: Gate.READY}


@on_virtual_time
async def test_whose_url_belongs_to_a_newer_life_is_out_as_its_lane_says():
    """Not missing, which would be a drift that nobody can mend."""
    fleet = Fleet()
    await fleet.start()
    await fleet.up()
    await fleet.registered()
    await fleet.up(OTHER)
    await fleet.registered(OTHER)
    await fleet.until(lambda: W in fleet.controller.lanes["a"].held)
    status = await look(fleet)
    held = fleet.controller.lanes["a"].held[W]
    registration = status.workers[0].registrations[0]
    assert (registration.state, registration.gate, registration.reason) == (Standing.OUT, held.gate, held.reason)
    assert status.converged


@pytest.mark.parametrize("case", ["missing", "unwanted", "older life", "unreachable"])
@on_virtual_time
async def test_drift_is_seen(case):
    fleet = Fleet()
    await fleet.start()
    url = await fleet.up()
    await fleet.registered()
    await fleet.stop()
    (entry,) = fleet.proxy.listed
    if case == "unreachable":
        fleet.proxy.available = False
    elif case == "unwanted":
        fleet.proxy.put("http://10.0.0.1:9000", fleet=FLEET, worker=OTHER, incarnation=1)
    else:
        fleet.proxy.drop(entry)
        if case == "older life":
            fleet.controller.projector.state.roster.workers[W].incarnation = 2
            fleet.proxy.put(url, fleet=FLEET, worker=W, incarnation=1)
    status = await look(fleet)
    assert not status.converged
    found = standings(status)
    expected = {"missing": Standing.MISSING, "older life": Standing.UNWANTED, "unreachable": Standing.UNKNOWN}
    if case == "unwanted":
        assert found[W] == [Standing.REGISTERED]
    else:
        assert found[W] == [expected[case]]


@on_virtual_time
async def test_a_large_fleet_is_not_asked_all_at_once():
    fleet = Fleet("a", "b")
    await fleet.start()
    for proxy in fleet.proxies.values():
        proxy.available = False
    workers = [f"rollout-{number}-0" for number in range(3 * PROBES_IN_FLIGHT)]
    for number, worker in enumerate(workers):
        await fleet.up(worker, port=8000 + number)
    await fleet.until(lambda: len(fleet.controller.projector.state.roster.workers) == len(workers))
    await fleet.stop()
    for proxy in fleet.proxies.values():
        proxy.available = True
    answer = fleet.readiness.check
    fleet.readiness.seconds = 1.0
    in_flight = most = 0

    async def check(url, path, identity=None):
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)
        try:
            return await answer(url, path, identity)
        finally:
            in_flight -= 1

    fleet.readiness.check = check
    status = await look(fleet)
    assert most == PROBES_IN_FLIGHT
    assert all(found == [Standing.MISSING, Standing.MISSING] for found in standings(status).values())
    assert [one.wanted for one in status.proxies] == [len(workers), len(workers)]
