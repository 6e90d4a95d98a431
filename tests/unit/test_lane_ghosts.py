"""Entries that appear after their removal, at proxies that keep no tags: whose they are, and for how long."""

import asyncio

import pytest
from support.core import TIME
from support.fleet import Fleet, W, on_virtual_time

from rollbook.events import Deregistered, DriftFound, Recorded, Registered, Registering, RegistrationFailed
from rollbook.projections.deciding.ghosts import BELIEVED_SECONDS, Ghosts
from rollbook.projections.ports import Capabilities, ProxyUnavailable
from rollbook.projections.state.ledger import MOST_GHOSTS, Ledger

PLAIN = Capabilities(tag=False)
URL = "http://10.0.0.1:8000"


def about(fact, worker=W, url=URL, **fields):
    return fact(proxy="a", worker=worker, incarnation=1, url=url, **fields)


REGISTERING, REGISTERED, DEREGISTERED = about(Registering), about(Registered), about(Deregistered)
NOT_ADDED = about(RegistrationFailed, action="register", reason="no answer")
NOT_CALLED = about(RegistrationFailed, action="register", reason="not called", called=False)


def fold(*facts):
    ledger = Ledger()
    for sequence, fact in enumerate(facts, 1):
        ledger.apply(Recorded(sequence, f"id-{sequence}", TIME, "test", fact))
    return ledger.look("a")


@pytest.mark.parametrize(
    ("facts", "haunted"),
    [
        ([REGISTERING, REGISTERED, DEREGISTERED], False),
        ([REGISTERING, DEREGISTERED], True),
        ([REGISTERING, NOT_ADDED, DEREGISTERED], True),
        ([REGISTERING, NOT_CALLED, DEREGISTERED], False),
        ([REGISTERING, REGISTERING, REGISTERED, DEREGISTERED], True),
        ([REGISTERING, NOT_ADDED, REGISTERING, REGISTERED, DEREGISTERED], True),
        ([REGISTERING, NOT_ADDED, DEREGISTERED, about(Registering, "rollout-1-0")], False),
        ([REGISTERING, NOT_ADDED, about(Registering, url="http://b")], True),
    ],
)
def test_a_url_is_haunted_by_an_add_whose_effect_nobody_saw_until_somebody_registers_there(facts, haunted):
    assert (URL in fold(*facts).ghosts) is haunted


def test_only_so_many_are_remembered():
    facts = []
    for number in range(MOST_GHOSTS + 5):
        url = f"http://h:{number}"
        facts += [about(Registering, url=url), about(Deregistered, url=url)]
    ghosts = fold(*facts).ghosts
    assert len(ghosts) == MOST_GHOSTS
    assert "http://h:4" not in ghosts


def test_they_are_believed_for_a_while_of_one_leadership():
    record = fold(REGISTERING, DEREGISTERED)
    ghosts = Ghosts()
    assert ghosts.now(record, 100.0) == {URL: (W, 1)}
    assert ghosts.now(record, 99.0 + BELIEVED_SECONDS) == {URL: (W, 1)}
    assert ghosts.now(record, 100.0 + BELIEVED_SECONDS) == {}
    assert Ghosts().now(record, 100.0 + BELIEVED_SECONDS) == {URL: (W, 1)}


async def given_up(fleet):
    """An add without an answer, whose worker dies before anybody saw its effect."""
    await fleet.start()

    async def silent(target):
        raise ProxyUnavailable("no answer")

    fleet.proxy.add = silent
    await fleet.up()
    await fleet.until(lambda: fleet.facts(RegistrationFailed))
    await fleet.down()
    await fleet.until(lambda: fleet.facts(Deregistered))


@pytest.mark.parametrize("seconds", [0.0, 60.0])
@on_virtual_time
async def test_a_late_add_is_recognised_and_removed(seconds):
    """[I1] [I2]."""
    fleet = Fleet(capabilities=PLAIN, resync=5)
    await given_up(fleet)
    await asyncio.sleep(seconds)
    fleet.proxy.put(URL)
    await fleet.until(lambda: not fleet.proxy.listed, 10)
    await fleet.until(lambda: fleet.controller.lanes["a"].idle)


@on_virtual_time
async def test_the_next_controller_recognises_it_too():
    fleet = Fleet(capabilities=PLAIN, resync=5)
    await given_up(fleet)
    await fleet.stop()
    await fleet.start("two")
    fleet.proxy.put(URL)
    await fleet.until(lambda: not fleet.proxy.listed, 10)


@on_virtual_time
async def test_what_appears_long_afterwards_is_somebody_elses():
    """[I11]."""
    fleet = Fleet(capabilities=PLAIN, resync=5)
    await given_up(fleet)
    await asyncio.sleep(BELIEVED_SECONDS + 1)
    fleet.proxy.put(URL)
    await asyncio.sleep(60)
    assert [entry.url for entry in fleet.proxy.listed] == [URL]
    assert fleet.facts(DriftFound)[-1].foreign == (URL,)


@on_virtual_time
async def test_what_was_seen_and_removed_haunts_nobody():
    """[I11]: a stranger may have that address at once."""
    fleet = Fleet(capabilities=PLAIN, resync=5)
    await fleet.start()
    await fleet.up()
    await fleet.until(lambda: fleet.facts(Registered))
    await fleet.down()
    await fleet.until(lambda: fleet.facts(Deregistered))
    fleet.proxy.put(URL)
    await asyncio.sleep(60)
    assert [entry.url for entry in fleet.proxy.listed] == [URL]
