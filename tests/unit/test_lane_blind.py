"""Proxies that list nothing (the routed API): the ledger is all there is, and an answer is its confirmation."""

import asyncio

import pytest
from support.core import TIME
from support.fleet import Fleet, W, on_virtual_time
from support.look import look

from rollbook.adapters.memory.faults import ProxyFaults
from rollbook.events import (
    Deregistered,
    Deregistering,
    ProxyReachable,
    ProxyUnreachable,
    Recorded,
    Registered,
    Registering,
    RegistrationFailed,
)
from rollbook.projections.deciding.observed import believed, observe
from rollbook.projections.ports import Capabilities, Failed
from rollbook.projections.state.ledger import Ledger

BLIND = Capabilities(list=False, tag=False)
OTHER = "rollout-1-0"


def urls(fleet):
    return sorted(entry.url for entry in fleet.proxy.listed)


def told(fleet, worker=W):
    lives = fleet.controller.projector.state.ledger.look("a").registrations.get(worker, {})
    return {incarnation: str(life.told) for incarnation, life in lives.items()}


@on_virtual_time
async def test_it_is_never_asked_what_it_lists_and_follows_the_roster():
    """[I1]: up, a new life on its URL, another address, down."""
    fleet = Fleet(capabilities=BLIND)
    await fleet.start()
    url = await fleet.up()
    await fleet.until(lambda: told(fleet) == {1: "registered"})
    await fleet.up(incarnation=2)
    await fleet.until(lambda: told(fleet) == {2: "registered"})
    assert urls(fleet) == [url]
    status = await look(fleet)
    assert (status.converged, status.proxies[0].registered) == (True, 1)
    new = fleet.place(incarnation=2, port=9000)
    await fleet.until(lambda: urls(fleet) == [new], 30)
    await fleet.down(incarnation=2)
    await fleet.until(lambda: not fleet.proxy.listed)
    await fleet.until(lambda: told(fleet) == {})
    assert {call.verb for call in fleet.proxy.calls} == {"add", "remove"}


@on_virtual_time
async def test_all_is_quiet_when_all_is_said():
    fleet = Fleet(capabilities=BLIND)
    await fleet.start()
    for number in range(8):
        await fleet.up(f"rollout-{number}-0", port=8000 + number)
    await fleet.until(lambda: len(fleet.facts(Registered)) == 8)
    before = len(fleet.recorded())
    await asyncio.sleep(120)
    assert len(fleet.recorded()) == before
    assert len(fleet.calls("add")) == 8


@pytest.mark.parametrize("wanted", [True, False])
@on_virtual_time
async def test_an_add_whose_answer_is_lost_is_made_again_or_taken_back(wanted):
    fleet = Fleet(capabilities=BLIND)
    fleet.proxy.faults = ProxyFaults(lose_answer=1)
    await fleet.start()
    await fleet.up()
    await fleet.until(lambda: fleet.facts(RegistrationFailed))
    if not wanted:
        await fleet.down()
        await asyncio.sleep(1)
    fleet.proxy.faults = ProxyFaults()
    await fleet.until(lambda: told(fleet) == ({1: "registered"} if wanted else {}))
    assert len(urls(fleet)) == wanted
    assert fleet.calls("remove" if not wanted else "add")


@on_virtual_time
async def test_a_lost_add_is_taken_back_where_it_was_when_the_worker_is_elsewhere_now():
    fleet = Fleet(capabilities=BLIND)
    await fleet.start()
    fleet.proxy.faults = ProxyFaults(lose_answer=1)
    old = await fleet.up()
    await fleet.until(lambda: fleet.facts(RegistrationFailed))
    assert urls(fleet) == [old]
    new = fleet.place(port=9000)
    fleet.proxy.faults = ProxyFaults()
    await fleet.until(lambda: told(fleet) == {1: "registered"} and urls(fleet) == [new], 30)


@on_virtual_time
async def test_a_removal_whose_answer_is_lost_is_made_again_and_undone_if_it_is_wanted_again():
    """[I1]: nobody can see whether it is there; so it is added."""
    fleet = Fleet(capabilities=BLIND, resync=600)
    await fleet.start()
    url = await fleet.up()
    await fleet.until(lambda: told(fleet) == {1: "registered"})
    fleet.proxy.faults = ProxyFaults(lose_answer=1)
    sequence = await fleet.down()
    await fleet.until(lambda: fleet.facts(RegistrationFailed))
    await fleet.back(sequence)
    fleet.proxy.faults = ProxyFaults()
    await fleet.until(lambda: told(fleet) == {1: "registered"} and urls(fleet) == [url], 30)


@on_virtual_time
async def test_two_workers_and_one_url():
    """[I3]: the newest life has it, and the removal for the older one does not take it away."""
    fleet = Fleet(capabilities=BLIND)
    await fleet.start()
    url = await fleet.up()
    await fleet.until(lambda: told(fleet) == {1: "registered"})
    await fleet.up(OTHER)
    await fleet.until(lambda: told(fleet, OTHER) == {1: "registered"})
    await fleet.down()
    await asyncio.sleep(60)
    assert urls(fleet) == [url]
    assert (told(fleet), told(fleet, OTHER)) == ({}, {1: "registered"})


@on_virtual_time
async def test_a_controller_that_dies_before_the_answer_leaves_it_to_the_next():
    """[I5]: an intent without an outcome is not certain."""
    fleet = Fleet(capabilities=BLIND)
    await fleet.start()
    fleet.proxy.faults = ProxyFaults(slowest_job=20)
    url = await fleet.up()
    await fleet.until(lambda: fleet.calls("add"))
    await fleet.stop()
    fleet.proxy.faults = ProxyFaults()
    await fleet.start("two")
    await fleet.until(lambda: told(fleet) == {1: "registered"})
    assert urls(fleet) == [url]
    assert len(fleet.calls("add")) == 2


@on_virtual_time
async def test_one_call_at_a_time_probes_a_proxy_that_does_not_answer():
    """Not one retry per worker."""
    fleet = Fleet(capabilities=BLIND, resync=5)
    await fleet.start()
    await fleet.up()
    await fleet.until(lambda: told(fleet) == {1: "registered"})
    fleet.proxy.available = False
    for number in range(1, 40):
        await fleet.up(f"rollout-{number}-0", port=8000 + number)
    await asyncio.sleep(60)
    assert len(fleet.facts(ProxyUnreachable)) == 1
    fleet.proxy.calls.clear()
    await asyncio.sleep(60)
    assert len(fleet.proxy.calls) < 60
    assert not (await look(fleet)).proxies[0].reachable
    fleet.proxy.available = True
    await fleet.until(lambda: len(urls(fleet)) == 40, 30)
    assert len(fleet.facts(ProxyReachable)) == 2


@on_virtual_time
async def test_what_it_says_no_to_is_tried_again_and_shown():
    fleet = Fleet(capabilities=BLIND)
    add = fleet.proxy.add

    async def no(target):
        return Failed("no such model")

    fleet.proxy.add = no
    await fleet.start()
    await fleet.up()
    await fleet.until(lambda: len(fleet.facts(RegistrationFailed)) == 3)
    status = await look(fleet)
    assert not status.converged
    assert [(one.worker, one.attempts) for one in status.proxies[0].failing] == [(W, 3)]
    fleet.proxy.add = add
    await fleet.until(lambda: told(fleet) == {1: "registered"})
    assert (await look(fleet)).converged


# ---------------------------------------------------------------- what is believed

URL = "http://10.0.0.1:8000"


def about(fact, **fields):
    return fact(proxy="a", worker=W, incarnation=1, url=URL, **fields)


REGISTERING, REGISTERED, DEREGISTERING = about(Registering), about(Registered), about(Deregistering)
NOT_ADDED = about(RegistrationFailed, action="register", reason="no answer")
NOT_CALLED = about(RegistrationFailed, action="register", reason="not called", called=False)
NOT_REMOVED = about(RegistrationFailed, action="deregister", reason="no answer")
STAYED = about(RegistrationFailed, action="deregister", reason="not called", called=False)
CANNOT = about(RegistrationFailed, action="deregister", reason="cannot", retryable=False)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ([REGISTERING], False),
        ([REGISTERED], True),
        ([NOT_CALLED], None),
        ([NOT_ADDED], False),
        ([NOT_ADDED, NOT_CALLED], False),
        ([REGISTERED, DEREGISTERING], False),
        ([REGISTERED, DEREGISTERING, STAYED], True),
        ([REGISTERED, DEREGISTERING, NOT_REMOVED], False),
        ([REGISTERED, DEREGISTERING, REGISTERING], False),
        ([REGISTERED, DEREGISTERING, CANNOT], True),
        ([NOT_ADDED, CANNOT], False),
        ([REGISTERED, about(Deregistered)], None),
    ],
)
def test_what_the_log_says_is_there_for_certain_maybe_or_not(facts, expected):
    ledger = Ledger()
    for sequence, fact in enumerate(facts, 1):
        ledger.apply(Recorded(sequence, f"id-{sequence}", TIME, "test", fact))
    record = ledger.look("a")
    found = observe("f", record, believed(record), BLIND).owned.get(W, [])
    assert [own.certain for own in found] == ([] if expected is None else [expected])


@on_virtual_time
async def test_who_is_withheld_is_no_probe_of_a_proxy_that_is_away():
    """[I1, I10] Nothing was called any more: the one call to be made was of a removal that rests (seed 21952)."""
    fleet = Fleet(capabilities=BLIND, served={"removal_budget": 0.0})
    await fleet.start()
    await fleet.up()
    await fleet.until(lambda: told(fleet) == {1: "registered"})
    await fleet.down(evidence="timeout")
    await fleet.until(lambda: fleet.controller.lanes["a"].withheld)
    fleet.proxy.available = False
    await fleet.up(OTHER, port=9000)
    await fleet.until(lambda: fleet.facts(ProxyUnreachable))
    await asyncio.sleep(60)
    fleet.proxy.available = True
    await fleet.until(lambda: told(fleet, OTHER) == {1: "registered"})
