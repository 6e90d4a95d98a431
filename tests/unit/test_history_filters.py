"""What is left to the server is never more than what is not wanted."""

import itertools

import pytest
from support.core import CODEC, FLEET
from support.histories import NAMES, a_history
from support.past import told

from rollbook.events import FACTS, UnknownFact, WorkerCordoned, WorkerUp
from rollbook.events.subjects import covers
from rollbook.projections.history.filters import Filter, places_of
from rollbook.projections.history.moments import state_at

FILTERS = [
    Filter(),
    *(Filter(worker=name) for name in NAMES),
    *(Filter(proxy=name) for name in ("a", "b", "c")),
    *(Filter(types=frozenset(kinds)) for kinds in itertools.combinations(list(FACTS)[::5], 2)),
    Filter(operator="ann"),
    Filter(operator="bob"),
    *(Filter(incarnation=n) for n in (1, 3)),
    Filter(pool="rollout"),
    Filter(cell="1"),
    Filter(pool="rollout", cell="1"),
    Filter(worker=NAMES[0], proxy="a"),
    Filter(worker=NAMES[0], operator="ann"),
    Filter(proxy="a", operator="ann"),
    Filter(proxy="a", types=frozenset({"rollbook.worker.up.v1"})),
    Filter(types=frozenset({"rollbook.worker.danced.v9"})),
]


@pytest.mark.parametrize("wanted", FILTERS, ids=range(len(FILTERS)))
async def test_every_wanted_fact_stands_on_a_subject_that_is_asked_for(wanted):
    past = await told([fact for seed in range(3) for fact in a_history(seed)])
    subjects = wanted.subjects(FLEET)
    async for batch in past.read(1, 900):
        for stored in batch:
            recorded = CODEC.decode(stored.payload, subject=stored.subject, sequence=stored.sequence)
            if wanted.admits(recorded):
                assert subjects is not None
                assert not subjects or covers(subjects, stored.subject)


def test_the_server_leaves_out_what_it_can():
    root = f"rollbook.{FLEET}"
    assert Filter().subjects(FLEET) == ()
    assert Filter(proxy="a").subjects(FLEET) == (
        f"{root}.operator.proxy.a",
        f"{root}.operator.fleet",
        f"{root}.proxy.a",
    )
    assert Filter(proxy="a", types=frozenset({"rollbook.proxy.registered.v1"})).subjects(FLEET) == (f"{root}.proxy.a",)
    assert Filter(worker="w", types=frozenset({"rollbook.worker.up.v1"})).subjects(FLEET) == (f"{root}.worker.w",)
    assert Filter(operator="ann", types=frozenset({"rollbook.worker.up.v1"})).subjects(FLEET) is None


@pytest.mark.parametrize("wanted", FILTERS, ids=range(len(FILTERS)))
def test_no_subject_that_is_asked_for_covers_another(wanted):
    """The server refuses a consumer whose filters overlap."""
    subjects = wanted.subjects(FLEET) or ()
    assert not [(a, b) for a, b in itertools.permutations(subjects, 2) if covers([a], b)]


async def test_free_names_are_found_by_the_place_that_the_roster_knows():
    past = await told([WorkerUp(worker="judge", incarnation=1, pool="reward", cell="a", rank=0)])
    await past.say(WorkerCordoned(worker="judge", by="ann", why="slow"))
    state = await state_at(past, CODEC, 2)
    wanted = Filter(pool="reward", cell="a", places=places_of(state))
    found = [
        wanted.admits(CODEC.decode(one.payload, subject=one.subject, sequence=one.sequence))
        for one in past.log.messages
    ]
    assert found == [True, True]
    assert places_of(state) == {"judge": ("reward", "a")}


def test_a_fact_that_nobody_knows_is_wanted_by_nobody_but_who_wants_all():
    fact = UnknownFact(type="rollbook.worker.danced.v9", data=b"{}")
    recorded = CODEC.decode(
        b'{"specversion":"1.0","id":"x","source":"rollbook://f/t","type":"rollbook.worker.danced.v9","data":{},'
        b'"subject":"w"}',
        subject="rollbook.f.worker.w",
        sequence=1,
    )
    assert type(recorded.fact) is type(fact)
    assert Filter().admits(recorded)
    assert Filter(types=frozenset({fact.type})).admits(recorded)
    assert not Filter(pool="rollout").admits(recorded)
    assert not Filter(worker="w").admits(recorded)
