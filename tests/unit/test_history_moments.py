"""A moment is a sequence or a time, and gives one state, whatever it is folded from [I5]."""

import math

import pytest
from support.core import CODEC
from support.histories import a_history
from support.past import BEGAN, told

from rollbook.events import WorkerDown, WorkerUp
from rollbook.projections.history.moments import NOW, Moment, NoSuchMoment, fold, parse_moment, sequence_of, state_at
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
