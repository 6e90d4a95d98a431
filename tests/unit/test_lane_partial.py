"""Some workers cannot be added: the others are in, and each of these is tried again on a schedule of its own."""

import asyncio
import random

import pytest
from support.fleet import Fleet, on_virtual_time
from support.look import look

from rollbook.adapters.cli.status import render
from rollbook.adapters.memory.faults import ProxyFaults
from rollbook.adapters.memory.proxy import AS_SGLANG
from rollbook.events import Registered, RegistrationFailed, WorkerDown
from rollbook.events.times import parse_rfc3339
from rollbook.projections.ports import Done, Failed, Pending

SIZE = 64
BAD = [f"rollout-{number}-0" for number in (17, 31, 45, 50, 60)]


def refuse(fleet, names):
    """The router refuses these workers."""
    add = fleet.proxy.add

    async def refusing(target):
        if target.worker in names:
            fleet.proxy._note("add", target)
            return Failed(f"{target.url} cannot be used")
        return await add(target)

    fleet.proxy.add = refusing


def text(taken, now):
    return ["".join(piece if isinstance(piece, str) else piece[0] for piece in line) for line in render(taken, now)]


@on_virtual_time
async def test_59_of_64_are_in_and_status_says_so_in_one_line():
    fleet = Fleet(backoff_first=1.0, backoff_most=15.0)
    refuse(fleet, BAD)
    await fleet.start()
    for number in range(SIZE):
        await fleet.up(f"rollout-{number}-0", port=8000 + number)
    await fleet.until(lambda: len(fleet.proxy.listed) == SIZE - len(BAD), 10)
    await asyncio.sleep(30)
    tries = {name: [call.at for call in fleet.calls("add") if call.what.worker == name] for name in BAD}
    assert all(3 <= len(moments) <= 60 for moments in tries.values())
    assert len({moments[2] for moments in tries.values()}) == len(BAD), "each on a schedule of its own"
    failures = [fact for fact in fleet.facts(RegistrationFailed) if fact.worker == BAD[0]]
    assert len(failures) == len(tries[BAD[0]]), "all outcomes are kept"
    assert all(fact.retry_seconds is not None for fact in failures)
    status = await look(fleet)
    assert not status.converged
    assert {one.worker for one in status.proxies[0].failing} == set(BAD)
    one = status.proxies[0].failing[0]
    assert (one.worker, one.attempts) == (BAD[0], len(failures))
    [line] = [line for line in text(status, parse_rfc3339(one.retry_at) - 4.2) if "of 64 registered" in line]
    said = f"a: 59 of 64 registered; 5 failed: {BAD[0]} (register: http://10.0.0.1:8017 cannot be used; attempt "
    assert line.startswith(said + f"{len(failures)}, next in 4 s), {BAD[1]} (")


@on_virtual_time
async def test_who_is_being_tried_again_is_still_one_that_failed():
    """A router that takes its time to refuse: the line does not count fewer whenever somebody is asked."""
    fleet = Fleet(backoff_first=30, backoff_most=30, call_deadline=50)
    add, tries = fleet.proxy.add, []

    async def slow(target):
        tries.append(target)
        if len(tries) > 1:
            await asyncio.sleep(20)
        return Failed("cannot be used")

    fleet.proxy.add = slow
    await fleet.start()
    await fleet.up(BAD[0])
    await fleet.until(lambda: len(fleet.facts(RegistrationFailed)) == 1)
    await fleet.until(lambda: len(tries) == 2, 60)
    await asyncio.sleep(10)
    assert [(one.worker, one.reason, one.attempts, one.retry_at) for one in (await look(fleet)).proxies[0].failing] == [
        (BAD[0], "registering: being tried again", 1, None)
    ]
    fleet.proxy.add = add
    await fleet.until(lambda: fleet.proxy.listed, 100)
    assert (await look(fleet)).proxies[0].failing == ()


@pytest.mark.parametrize("number", [4, 60])
@on_virtual_time
async def test_adds_that_never_come_true_do_not_hold_back_the_others(number):
    """[I10]: accepted, and never done; each holds a slot for as long as it is waited for."""
    fleet = Fleet(confirm_deadline=10)
    bad = [f"rollout-{n}-0" for n in range(number)]
    add = fleet.proxy.add

    async def promising(target):
        return Pending("never") if target.worker in bad else await add(target)

    fleet.proxy.add = promising
    await fleet.start()
    for name in bad:
        await fleet.up(name, port=8000 + int(name.split("-")[1]))
    await asyncio.sleep(40 * number / 4)
    assert fleet.facts(Registered) == []
    before = fleet.clock.monotonic()
    for n in range(100, 140):
        await fleet.up(f"rollout-{n}-0", port=8000 + n)
    await fleet.until(lambda: len(fleet.facts(Registered)) == 40, 120)
    assert fleet.clock.monotonic() - before < 15


@on_virtual_time
async def test_entries_that_stay_whatever_the_router_says_do_not_hold_back_other_removals():
    """[I10]: thousands of entries tagged as ours that no removal takes away."""
    fleet = Fleet(confirm_deadline=10, served={"removal_budget": 1.0})
    await fleet.start()
    names = await fleet.pool_up(4)
    sticky = {f"sticky-{number}-0" for number in range(2000)}
    for number, name in enumerate(sorted(sticky)):
        fleet.proxy.put(f"http://10.1.{number // 200}.{number % 200}:1", fleet="f", worker=name, incarnation=1)
    remove = fleet.proxy.remove

    async def lying(entry):
        if entry.worker in sticky:
            fleet.proxy._note("remove", entry)
            return Done()
        return await remove(entry)

    fleet.proxy.remove = lying
    await asyncio.sleep(60)
    began = fleet.clock.monotonic()
    await fleet.say(*(WorkerDown(worker=name, incarnation=1, evidence="exited") for name in names))
    await fleet.until(lambda: not {entry.worker for entry in fleet.proxy.listed} & set(names), 10)
    assert fleet.clock.monotonic() - began < 1
    made = len(fleet.calls("remove"))
    await asyncio.sleep(100)
    assert len(fleet.calls("remove")) - made <= 2 * 100 / 10 + 4, "a few at a time, each for its deadline"


@on_virtual_time
async def test_a_router_that_refuses_a_third_of_all_calls_gets_all_in_the_end():
    fleet = Fleet(capabilities=AS_SGLANG)
    fleet.proxy.faults = ProxyFaults(fail_job=0.3, lose_answer=0.2)
    await fleet.start(rng=random.Random(3))
    for number in range(32):
        await fleet.up(f"rollout-{number}-0", port=8000 + number)
    await fleet.until(lambda: len(fleet.proxy.listed) == 32, 300)
    fleet.proxy.faults = ProxyFaults()
    await fleet.until(lambda: fleet.controller.lanes["a"].idle, 60)
    status = await look(fleet)
    assert status.converged
    assert status.proxies[0].failing == ()
