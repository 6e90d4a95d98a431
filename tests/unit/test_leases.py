"""Leases: silence leads to a question first, and only then to a verdict; who sleeps may be silent."""

import asyncio

import pytest
from support.core import Book
from support.fleet import Fleet, W, on_virtual_time

from rollbook.events import FleetEnded, WorkerCordoned, WorkerDown, WorkerSuspended, WorkerUp
from rollbook.projections.leading.leases import AT_ONCE, expiry
from rollbook.projections.ports import HostAndPort
from rollbook.projections.state.leases import Leases

LEASE = 30.0
UP = WorkerUp(worker=W, incarnation=1, lease=LEASE)


def roster(*facts):
    book = Book()
    book.all(*facts)
    return book.roster


def test_a_lease_that_nobody_heard_of_begins_now():
    leases, fleet = Leases(), roster(UP)
    assert leases.overdue(fleet, 1000.0) == []
    assert leases.overdue(fleet, 1030.0) == []
    assert leases.overdue(fleet, 1030.1) == [W]
    leases.renewed(W, 1, 1031.0)
    assert leases.overdue(fleet, 1060.0) == []


def test_a_renewal_is_of_one_life():
    leases, fleet = Leases(), roster(UP)
    leases.renewed(W, 1, 0.0)
    leases.renewed(W, 2, 0.0)  # of a life that the log does not know yet
    leases.renewed(W, 1, 20.0)
    assert leases.overdue(fleet, 31.0) == []  # begins now, for this life
    again = roster(UP, WorkerUp(worker=W, incarnation=2))
    assert leases.overdue(again, 9999.0) == []  # which promised nothing


def test_another_up_of_the_same_life_leaves_the_lease_as_it_is():
    assert roster(UP, WorkerUp(worker=W, incarnation=1)).workers[W].lease == LEASE
    assert roster(UP, WorkerUp(worker=W, incarnation=1, lease=5.0)).workers[W].lease == 5.0


@pytest.mark.parametrize(
    "fact",
    [
        WorkerSuspended(worker=W, incarnation=1),
        WorkerDown(worker=W, incarnation=1, evidence="exited"),
        FleetEnded(run_id="r"),
    ],
)
def test_who_sleeps_or_is_gone_may_be_silent(fact):
    leases = Leases()
    leases.renewed(W, 1, 0.0)
    assert leases.overdue(roster(UP, fact), 1000.0) == []


def test_who_is_deaf_calls_nobody_overdue():
    leases, fleet = Leases(), roster(UP)
    leases.renewed(W, 1, 0.0)
    leases.deaf()
    assert leases.overdue(fleet, 1000.0) == []
    leases.listening(1000.0)
    assert leases.overdue(fleet, 1030.0) == []
    assert leases.overdue(fleet, 1031.0) == [W]


@pytest.fixture
def fleet():
    return Fleet()


async def begun(fleet):
    """A controller that looks after leases, and one worker that promised to be heard of; the leases."""
    fleet.companions = [expiry]
    controller = await fleet.start()
    fleet.url = fleet.place()
    await fleet.say(UP)
    return controller._resources.leases


def said(fleet, kind):
    return [one.fact for one in fleet.recorded() if isinstance(one.fact, kind)]


def now():
    return asyncio.get_running_loop().time()


@on_virtual_time
async def test_one_that_is_heard_of_is_left_alone():
    fleet = Fleet()
    leases = await begun(fleet)
    for _ in range(20):
        leases.renewed(W, 1, now())
        await asyncio.sleep(LEASE / 3)
    assert not [event for event, _ in fleet.told if event.startswith("lease.")]
    await fleet.stop()


@on_virtual_time
async def test_one_that_answers_is_not_down_however_long_it_is_silent():
    fleet = Fleet()
    await begun(fleet)
    await asyncio.sleep(10 * LEASE)
    assert said(fleet, WorkerDown) == []
    assert "lease.expired_and_answers" in [event for event, _ in fleet.told]
    await fleet.stop()


@on_virtual_time
async def test_one_that_is_silent_and_does_not_answer_is_down_and_is_up_when_it_is_heard_of_and_answers():
    fleet = Fleet()
    leases = await begun(fleet)
    fleet.readiness.close(fleet.url)
    await asyncio.sleep(LEASE + 5)
    (down,) = said(fleet, WorkerDown)
    assert down.evidence == "lease_expired"
    assert down.reason.startswith("not heard of for more than 30 s, and ")
    fleet.readiness.serve(fleet.url)
    await asyncio.sleep(60)
    assert len(said(fleet, WorkerUp)) == 1
    leases.renewed(W, 1, now())
    await asyncio.sleep(5)
    assert len(said(fleet, WorkerUp)) == 2
    assert said(fleet, WorkerUp)[1].seen > 0
    await fleet.stop()


@on_virtual_time
async def test_what_cannot_be_looked_up_is_unknown_and_never_dead():
    fleet = Fleet()
    await begun(fleet)
    fleet.readiness.close(fleet.url)
    fleet.provider.available = False
    await asyncio.sleep(10 * LEASE)
    fleet.provider.available = True
    fleet.place(incarnation=2)
    await asyncio.sleep(10 * LEASE)
    assert said(fleet, WorkerDown) == []
    await fleet.stop()


@on_virtual_time
async def test_a_pools_url_that_names_another_address_is_no_workers_death():
    """Whoever changed the configuration finds all as it was, and in `lease.unknown` what is wrong."""
    fleet = Fleet()
    await begun(fleet)
    fleet.readiness.close(fleet.url)
    fleet.provider.place(W, incarnation=1, addresses={"rpc": HostAndPort("127.0.0.1", 9000)})
    await asyncio.sleep(10 * LEASE)
    assert said(fleet, WorkerDown) == []
    assert {keys["reason"] for event, keys in fleet.told if event == "lease.unknown"} == {
        "its url template names 'primary'; the provider knows: rpc"
    }
    await fleet.stop()


@on_virtual_time
async def test_a_provider_that_breaks_ends_no_controller():  # I10
    fleet = Fleet()
    await begun(fleet)
    fleet.readiness.close(fleet.url)

    async def broken(names):
        raise KeyError("of another's making")

    fleet.provider.locate = broken
    await asyncio.sleep(3 * LEASE)
    assert {keys["reason"] for event, keys in fleet.told if event == "lease.unknown"} == {
        'the provider failed: KeyError: "of another\'s making"'
    }
    assert said(fleet, WorkerDown) == []
    await fleet.stop()


@on_virtual_time
async def test_who_loses_the_lease_while_it_asks_says_nothing_and_stands_by():  # I7
    fleet = Fleet()
    await begun(fleet)
    fleet.readiness.close(fleet.url)
    answered, leadership = fleet.readiness.check, fleet.controller._leadership

    async def last(*arguments):
        fleet.readiness.check = answered
        leadership.left = lambda: 0.0
        return await answered(*arguments)

    fleet.readiness.check = last
    await fleet.until(lambda: "leader.lost" in [event for event, _ in fleet.told], 3 * LEASE)
    assert said(fleet, WorkerDown) == []
    del leadership.left
    await fleet.until(lambda: said(fleet, WorkerDown), 3 * LEASE)
    assert [event for event, _ in fleet.told].count("leader.taken") >= 2
    await fleet.stop()


@on_virtual_time
async def test_who_changed_while_it_was_asked_is_not_shot():  # I3
    fleet = Fleet()
    await begun(fleet)
    fleet.readiness.close(fleet.url)
    answered = fleet.readiness.check

    async def slow(*arguments):
        found = await answered(*arguments)
        if not said(fleet, WorkerCordoned):
            await fleet.say(WorkerCordoned(worker=W, by="ann", why="test"))
            fleet.readiness.serve(fleet.url)
        return found

    fleet.readiness.check = slow
    await asyncio.sleep(3 * LEASE)
    assert said(fleet, WorkerCordoned)
    assert said(fleet, WorkerDown) == []
    await fleet.stop()


@pytest.mark.parametrize("news", ["heard", "deaf", "asleep"])
@on_virtual_time
async def test_who_is_no_longer_overdue_after_the_question_is_not_down(news):
    """Its publisher was heard of, or nothing can be heard, or another rank of its cell sleeps: no fact about it."""
    fleet = Fleet()
    leases = await begun(fleet)
    cell = {"cell_size": 2, "cell_incarnation": 1}
    other = "rollout-0-1"
    fleet.place(W, 2)
    await fleet.say(
        WorkerUp(worker=W, incarnation=2, lease=LEASE, **cell), WorkerUp(worker=other, incarnation=2, **cell)
    )
    await fleet.until(lambda: fleet.proxy.listed)
    fleet.readiness.close(fleet.url)
    answered, asked = fleet.readiness.check, []

    async def slow(*arguments):
        found = await answered(*arguments)
        if not asked:
            asked.append(now())
            if news == "heard":
                leases.renewed(W, 2, now())
            elif news == "deaf":
                leases.deaf()
            else:
                await fleet.say(WorkerSuspended(worker=other, incarnation=2))
                await asyncio.sleep(0.1)
        return found

    fleet.readiness.check = slow
    await fleet.until(lambda: asked, 3 * LEASE)
    await asyncio.sleep(5)
    assert said(fleet, WorkerDown) == []
    await fleet.stop()


LAST = f"rollout-{AT_ONCE}-0"


@pytest.mark.parametrize(
    "meanwhile",
    [
        WorkerUp(worker=LAST, incarnation=2),  # which promised nothing
        WorkerUp(worker=LAST, incarnation=2, lease=LEASE),
        WorkerSuspended(worker=LAST, incarnation=1),
    ],
)
@on_virtual_time
async def test_whose_turn_comes_late_is_judged_as_it_is_then(meanwhile):  # I3
    """A node that is lost takes more leases with it than are asked about at a time."""
    fleet = Fleet()
    await begun(fleet)
    names = [W, *(f"rollout-{number}-0" for number in range(1, AT_ONCE + 1))]
    urls = [fleet.place(name, port=8000 + number) for number, name in enumerate(names)]
    await fleet.say(*(WorkerUp(worker=name, incarnation=1, lease=LEASE) for name in names[1:]))
    await fleet.until(lambda: len(fleet.proxy.listed) == len(names))
    for url in urls:
        fleet.readiness.close(url)
    answered, unsaid = fleet.readiness.check, [meanwhile]

    async def slow(*arguments):
        while unsaid:
            fact = unsaid.pop()
            fleet.readiness.close(fleet.place(LAST, fact.incarnation, port=8000 + AT_ONCE))
            await fleet.say(fact)
        await asyncio.sleep(0.5)
        return await answered(*arguments)

    fleet.readiness.check = slow
    await fleet.until(lambda: len(said(fleet, WorkerDown)) == AT_ONCE, 2 * LEASE)
    await asyncio.sleep(5)
    assert {down.worker for down in said(fleet, WorkerDown)} == set(names) - {LAST}
    assert not fleet.running.done()
    await fleet.stop()
