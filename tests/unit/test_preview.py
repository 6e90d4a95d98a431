"""What a pass would change: every line from the lane's own plan and gates, one for each entry."""

import msgspec
from hypothesis import given
from support.core import FLEET, POLICY, PROXY, folded
from support.histories import HISTORIES
from support.plans import entry, listings, registrations, url_of

from rollbook.events import (
    ReconcileHeld,
    Registered,
    RegistrationFact,
    RemovalWithheld,
    WorkerCordoned,
    WorkerDown,
    WorkerUp,
)
from rollbook.projections.deciding.gates import Gate, Held
from rollbook.projections.deciding.observed import observe
from rollbook.projections.deciding.plan import Add, Remove, make_plan
from rollbook.projections.looking.preview import (
    Answers,
    Change,
    Preview,
    Was,
    lines_at,
    newcomers,
    steps_at,
    withheld_at,
)
from rollbook.projections.ports import Entry, Listing

W, OTHER = "rollout-0-0", "rollout-1-0"
BY = {"by": "ann", "why": "test"}


def up(worker=W, incarnation=1):
    return WorkerUp(worker=worker, incarnation=incarnation)


def lines(facts, *entries, **answers):
    state = folded(*facts)
    if "admitted" not in answers:
        observed = observe(FLEET, state.ledger.look(PROXY.name), Listing(entries))
        steps, _ = steps_at(state, POLICY, PROXY, observed, answers.get("moved", {}))
        answers["admitted"] = {add.worker: url_of(add.worker) for add in newcomers(steps)}
    return lines_at(state, POLICY, PROXY, Answers(listing=Listing(entries), **answers))[0]


def short(found):
    return [(line.change, line.worker, line.incarnation, line.url) for line in found]


def test_a_newcomer_is_registered_where_it_is():
    (line,) = lines([up()])
    assert (line.change, line.worker, line.incarnation, line.url) == (Change.REGISTER, W, 1, url_of(W))
    assert line.differs


def test_what_is_as_it_should_be_has_no_line():
    known = Registered(proxy="router", worker=W, incarnation=1, url=url_of(W))
    assert lines([up(), known], entry(W, 1)) == []


def test_another_life_on_the_same_url_is_one_replacement():
    (line,) = lines([up(), up(incarnation=2)], entry(W, 1))
    assert short([line]) == [(Change.REPLACE, W, 2, url_of(W))]
    assert line.was == (Was(1, url_of(W)),)
    assert line.reason == "superseded by incarnation 2"


def test_all_that_is_listed_of_older_lives_goes_in_one_replacement():
    (line,) = lines([up(incarnation=3)], entry(W, 1, url="http://one:1"), entry(W, 2, url="http://two:1"))
    assert line.was == (Was(1, "http://one:1"), Was(2, "http://two:1"))


def test_an_old_entry_beside_the_right_one_only_goes():
    found = lines([up(), up(incarnation=2)], entry(W, 2), entry(W, 1, url="http://old:1"))
    assert short(found) == [(Change.DEREGISTER, W, 1, "http://old:1")]


def test_a_worker_that_moved_is_replaced():
    known = Registered(proxy="router", worker=W, incarnation=1, url=url_of(W))
    new = "http://new:1"
    (line,) = lines([up(), known], entry(W, 1), moved={W: new}, admitted={W: new})
    assert (line.change, line.url, line.was) == (Change.REPLACE, new, (Was(1, url_of(W)),))


def test_who_does_not_belong_goes_and_the_gate_says_why():
    (line,) = lines([up(), WorkerCordoned(worker=W, **BY)], entry(W, 1))
    assert (line.change, line.reason) == (Change.DEREGISTER, "not_cordoned: cordoned by ann: test")


def test_a_closed_gate_withholds_and_is_no_difference():
    (line,) = lines([up()], admitted={W: Held(Gate.READY, "GET /health answers 503")})
    assert (line.change, line.would, line.gate) == (Change.WITHHELD, Change.REGISTER, "ready")
    assert not line.differs


def test_an_older_life_goes_also_when_the_newer_one_is_kept_out():
    found = lines([up(), up(incarnation=2)], entry(W, 1), admitted={W: Held(Gate.READY, "503")})
    assert short(found) == [(Change.DEREGISTER, W, 1, url_of(W)), (Change.WITHHELD, W, 2, None)]


def test_a_hold_withholds_all_that_would_change_and_remains_a_difference():
    found = lines([up(), up(OTHER), WorkerDown(worker=OTHER, incarnation=1, evidence="exited"),
                   ReconcileHeld(**BY)], entry(OTHER, 1))  # fmt: skip
    assert [(line.change, line.would, line.worker) for line in found] == [
        (Change.WITHHELD, Change.REGISTER, W),
        (Change.WITHHELD, Change.DEREGISTER, OTHER),
    ]
    assert all(line.differs and line.reason.startswith("held by ann: test (") for line in found)


def test_the_budget_withholds_a_removal():
    down = WorkerDown(worker=W, incarnation=1, evidence="timeout")
    (line,) = lines([up(), down], entry(W, 1), budget={W: "beyond the removal budget, and it answers"})
    assert (line.change, line.would, line.differs) == (Change.WITHHELD, Change.DEREGISTER, True)


def test_who_has_the_url_of_a_newer_life_goes_for_it():
    found = lines([up(), up(OTHER)], entry(W, 1), admitted={OTHER: url_of(W)})
    assert short(found) == [(Change.REGISTER, OTHER, 1, url_of(W)), (Change.DEREGISTER, W, 1, url_of(W))]
    assert found[1].reason == f"its url belongs to {OTHER} now"


def test_a_url_that_others_have_keeps_a_worker_out():
    stranger = Entry(url=url_of(W), handle="1")
    found = lines([up()], stranger, admitted={W: url_of(W)})
    assert short(found) == [(Change.WITHHELD, W, 1, None), (Change.FOREIGN, None, None, url_of(W))]
    assert found[0].gate == "address_free"
    assert not any(line.differs for line in found)


def test_an_entry_that_goes_is_in_nobodys_way():
    """The older worker is down: what it has is free for the newer one, and for an older life too [I3]."""
    down = WorkerDown(worker=OTHER, incarnation=1, evidence="exited")
    found = lines([up(), up(OTHER), down], entry(OTHER, 1, url=url_of(W)), admitted={W: url_of(W)})
    assert short(found) == [(Change.REGISTER, W, 1, url_of(W)), (Change.DEREGISTER, OTHER, 1, url_of(W))]


def test_an_exclusive_proxy_loses_what_others_put_there():
    exclusive = msgspec.structs.replace(PROXY, exclusive=True)
    listing = Listing((Entry(url="http://x:1", handle="x"),))
    (line,), _ = lines_at(folded(), POLICY, exclusive, Answers(listing=listing))
    assert (line.change, line.worker, line.url, line.differs) == (Change.DEREGISTER, None, "http://x:1", True)
    (held,), _ = lines_at(folded(ReconcileHeld(**BY)), POLICY, exclusive, Answers(listing=listing))
    assert (held.change, held.would) == (Change.WITHHELD, Change.DEREGISTER)


def test_the_log_says_whom_the_budget_keeps():
    withheld = RemovalWithheld(proxy="router", pool="rollout", workers=(W,), budget=1)
    assert list(withheld_at("router", folded(withheld).ledger.look("router"))) == [W]


def test_the_last_line_counts():
    state_lines = tuple(lines([up(), up(OTHER)], entry("rollout-9-0", 1), Entry(url="http://x:1", handle="x")))
    preview = Preview(fleet=FLEET, sequence=2, time="", lines=state_lines)
    assert preview.summary() == "Plan: 2 to register, 0 to replace, 1 to deregister, 1 foreign"
    assert preview.differs
    nothing = Preview(fleet=FLEET, sequence=2, time="", lines=())
    assert nothing.summary() == "Plan: 0 to register, 0 to replace, 0 to deregister"
    assert not nothing.differs


@given(HISTORIES, registrations(), listings())
def test_it_is_empty_exactly_when_the_plan_is(history, known, entries):
    """[I1] [I5]: a call in the plan is a line, a line is a call, and what is only written down is counted."""
    state = folded(*(fact for fact in history if not isinstance(fact, RegistrationFact)), *known)
    observed = observe(FLEET, state.ledger.look(PROXY.name), Listing(tuple(entries)))
    actions = make_plan(state, POLICY, PROXY, observed).actions
    found, unrecorded = lines_at(state, POLICY, PROXY, Answers(listing=Listing(tuple(entries))))
    calls = {action.worker for action in actions if isinstance(action, (Add, Remove))}
    assert {line.worker for line in found if line.change is not Change.FOREIGN} == calls
    assert unrecorded == sum(not isinstance(action, (Add, Remove)) for action in actions)
    removed = {(action.worker, action.incarnation) for action in actions if isinstance(action, Remove)}
    gone = {(line.worker, was.incarnation) for line in found for was in line.was}
    gone |= {
        (line.worker, line.incarnation)
        for line in found
        if line.change is Change.DEREGISTER or line.would is Change.DEREGISTER
    }
    held = state.roster.holding(PROXY.name) is not None
    assert removed <= gone or held
    assert tuple(sorted(line.url for line in found if line.change is Change.FOREIGN)) == observed.foreign
