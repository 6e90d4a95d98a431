"""A moment is a sequence or a time, and gives one state, whatever it is folded from [I5]."""

import asyncio
import math

import pytest
from support.core import CODEC
from support.histories import a_history
from support.past import BEGAN, Told, told

from rollbook.events import WorkerDown, WorkerUp
from rollbook.events.archived import Notes, add_notes
from rollbook.projections.history.moments import (
    NOW,
    Moment,
    NoSuchMoment,
    first_from,
    fold,
    parse_moment,
    sequence_of,
    state_at,
)
from rollbook.projections.history.timeline import timeline
from rollbook.projections.history.view import view
from rollbook.projections.ports import HistoryHole
from rollbook.projections.state.fold import State

W = "rollout-0-0"


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now", NOW),
        ("0", Moment(sequence=0)),
        ("4711", Moment(sequence=4711)),
        ("-15m", Moment(time=1000.0 - 900)),
        ("-1.5h", Moment(time=1000.0 - 5400)),
        ("-500ms", Moment(time=999.5)),
        ("1970-01-01T00:00:10Z", Moment(time=10.0)),
        ("1970-01-01T01:00:10.5+01:00", Moment(time=10.5)),
    ],
)
def test_words_that_name_a_moment(text, moment):
    assert parse_moment(text, 1000.0) == moment


@pytest.mark.parametrize("text", ["", "15m", "yesterday", "-5", "1970-01-01T00:00:10", "-99999999d", "٣", "1e3", "-1y"])
def test_words_that_name_none_are_refused_with_what_to_write(text):
    with pytest.raises(NoSuchMoment, match="write"):
        parse_moment(text, 1000.0)


async def test_a_time_stands_for_the_last_fact_stored_until_then():
    past = await told(a_history(1, 10))
    assert await sequence_of(past, Moment(time=BEGAN - 1)) == 0
    assert await sequence_of(past, Moment(time=BEGAN)) == 1
    assert await sequence_of(past, Moment(time=BEGAN + 3.5)) == 4
    assert await sequence_of(past, Moment(time=BEGAN + 1000)) == 10
    assert await sequence_of(past, NOW) == 10
    assert await sequence_of(past, Moment(sequence=7)) == 7
    with pytest.raises(NoSuchMoment, match="ends at 10"):
        await sequence_of(past, Moment(sequence=11))


async def test_a_range_begins_at_most_with_what_comes_next():
    past = await told(a_history(1, 10))
    assert [await first_from(past, Moment(sequence=n)) for n in (0, 1, 10, 11)] == [1, 1, 10, 11]
    assert await first_from(past, Moment(time=BEGAN + 1000)) == 11
    with pytest.raises(NoSuchMoment, match="no sequence 12 yet: the log ends at 10"):
        await first_from(past, Moment(sequence=12))


async def test_what_the_log_does_not_hold_yet_is_not_waited_for():
    past = await told(a_history(1, 10))
    async with asyncio.timeout(10):
        with pytest.raises(HistoryHole, match="it ends at 10"):
            await fold(past, CODEC, State(), 20)


@pytest.mark.parametrize("strangers", [(5,), (1, 2), (4, 5, 6), (9, 10), (3, 7)])
async def test_what_was_imported_without_its_time_hides_no_moment(strangers):
    """What is no fact has no place for the time at which it was stored first, and gets that of the import."""
    past = await told(a_history(1, 12))
    later = Told()
    later.clock.time += 1e6
    for one in past.log.messages[:10]:
        notes = Notes(one.sequence, one.stored_at, one.subject)
        payload = b"\xff" if one.sequence in strangers else add_notes(one.payload, notes)
        await later.garbage(one.subject, payload)
    await later.say(*a_history(2, 2))  # since the import
    for n in range(1, 11):
        moment = Moment(time=past.log.messages[n - 1].stored_at)
        expected = max((m for m in range(1, n + 1) if m not in strangers), default=0)
        assert expected <= await sequence_of(later, moment) <= n
    assert await sequence_of(later, Moment(time=later.log.messages[10].stored_at)) == 11
    drawn = await timeline(later, CODEC, 1, 10)
    assert drawn.end <= past.log.messages[9].stored_at


@pytest.mark.parametrize("seed", range(5))
async def test_a_state_is_the_same_from_a_snapshot_and_from_the_beginning(seed):
    past = await told(a_history(seed, 60))
    whole = {n: (await fold(past, CODEC, State(), n)).digest() for n in range(61)}
    await past.keep(20, 45)
    assert {n: (await state_at(past, CODEC, n)).digest() for n in range(61)} == whole


async def test_a_log_that_forgot_its_beginning_is_folded_from_a_snapshot_or_not_at_all():
    past = await told(a_history(1, 60))
    await past.keep(20, 45)
    digest = (await state_at(past, CODEC, 50)).digest()
    past.log.lose_head(30)
    assert (await state_at(past, CODEC, 50)).digest() == digest
    with pytest.raises(HistoryHole, match="no sequence"):
        await state_at(past, CODEC, 40)


async def test_a_snapshot_that_the_log_does_not_confirm_is_passed_over():
    past = await told([WorkerUp(worker=W, incarnation=1), WorkerUp(worker="rollout-1-0", incarnation=1)])
    await past.keep(2)
    past.log.lose_tail(1)
    await past.say(WorkerDown(worker=W, incarnation=1, evidence="exited"))
    assert (await state_at(past, CODEC, 2)).roster.workers[W].phase == "down"


async def test_the_view_says_what_the_state_says():
    past = await told(a_history(3, 200))
    state = await state_at(past, CODEC, 200)
    then = view("f", state, "")
    assert [worker.name for worker in then.workers] == list(state.roster.workers)
    shown = [*(r for worker in then.workers for r in worker.registrations), *then.lost]
    assert {(r.proxy, r.worker, r.incarnation) for r in shown} == {
        (proxy, worker, life)
        for proxy, record in state.ledger.proxies.items()
        for worker, lives in record.registrations.items()
        for life in lives
    }
    assert math.isfinite(then.sequence)
