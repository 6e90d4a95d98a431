"""The gates: each with its reason, in their order; and that what is unknown never ends a registration."""

import pytest
from support.core import FLEET, POLICY, PROXY, folded

from rollbook.events import (
    CellDeclared,
    FleetEnded,
    FleetStarted,
    WeightsLoaded,
    WeightsPublished,
    WorkerCordoned,
    WorkerDown,
    WorkerDraining,
    WorkerForgotten,
    WorkerRetired,
    WorkerStarted,
    WorkerSuspected,
    WorkerSuspended,
    WorkerUncordoned,
    WorkerUp,
)
from rollbook.projections.deciding import gates
from rollbook.projections.deciding.gates import Gate, Held
from rollbook.projections.policy import Policy, PoolPolicy
from rollbook.projections.ports import HostAndPort, Located

W = "rollout-0-0"
BY = {"by": "ann", "why": "noisy"}
UP = WorkerUp(worker=W, incarnation=1)


def standing(*facts, name=W, policy=POLICY):
    return gates.standing(folded(*facts).roster, policy, PROXY, name)


def rank(number, cell_incarnation=1, size=2, fact=WorkerUp, **fields):
    name = f"rollout-3-{number}"
    return fact(worker=name, incarnation=1, cell_size=size, cell_incarnation=cell_incarnation, **fields)


def test_a_serving_entrypoint_of_a_served_pool_belongs_there():
    assert standing(UP) is None


@pytest.mark.parametrize(
    ("facts", "gate", "reason"),
    [
        ([], Gate.NOT_FORGOTTEN, "the log knows no such worker"),
        ([UP, WorkerForgotten(worker=W, **BY)], Gate.NOT_FORGOTTEN, "an operator had it forgotten"),
        ([WorkerUp(worker=W, incarnation=1, pool="reward")], Gate.SELECTED, "pool 'reward' is not served by router"),
        ([WorkerUp(worker=W, incarnation=1, entrypoint=False)], Gate.ENTRYPOINT, "takes requests"),
        ([WorkerStarted(worker=W, incarnation=1)], Gate.SERVING, "starting"),
        ([UP, WorkerDown(worker=W, incarnation=1, evidence="exited", reason="oom")], Gate.SERVING, "exited: oom"),
        ([UP, WorkerDraining(worker=W, incarnation=1)], Gate.SERVING, "draining"),
        ([UP, WorkerRetired(worker=W, incarnation=1)], Gate.SERVING, "retired"),
        ([UP, FleetStarted(run_id="two")], Gate.SERVING, "retired (run two began)"),
        ([UP, WorkerSuspended(worker=W, incarnation=1, reason="sleep")], Gate.NOT_SUSPENDED, "sleep"),
        ([UP, CellDeclared(pool="rollout", cell="0", size=2, cell_incarnation=1)], Gate.CELL_COMPLETE, "1 is declared"),
        ([UP, WorkerCordoned(worker=W, **BY)], Gate.NOT_CORDONED, "cordoned by ann: noisy"),
    ],
)
def test_each_standing_gate_has_its_reason(facts, gate, reason):
    held = standing(*facts)
    assert held.gate is gate
    assert reason in held.reason
    assert str(held) == f"{gate}: {held.reason}"


def test_a_worker_without_a_pool_is_selected_by_nobody():
    held = standing(WorkerUp(worker="free", incarnation=1), name="free")
    assert held == Held(Gate.SELECTED, "it has no pool")


def test_gates_are_asked_in_their_order():
    """Each step takes the first failing gate away; the next one shows."""
    cell = {"cell_size": 2, "cell_incarnation": 1}
    steps = [
        (WorkerCordoned(worker=W, **BY), Gate.NOT_FORGOTTEN),
        (WorkerStarted(worker=W, incarnation=1, pool="reward", entrypoint=False, **cell), Gate.SELECTED),
        (WorkerSuspended(worker=W, incarnation=1, pool="rollout"), Gate.ENTRYPOINT),
        (WorkerSuspended(worker=W, incarnation=1, entrypoint=True), Gate.SERVING),
        (WorkerUp(worker=W, incarnation=1), Gate.NOT_SUSPENDED),
        (WorkerUp(worker=W, incarnation=2, **cell), Gate.CELL_COMPLETE),
        (WorkerUp(worker="rollout-0-1", incarnation=1, **cell), Gate.NOT_CORDONED),
        (WorkerUncordoned(worker=W, **BY), None),
    ]
    said = []
    for fact, gate in steps:
        said.append(fact)
        held = standing(*said)
        assert (None if held is None else held.gate) is gate
    order = [gate for _, gate in steps if gate is not None]
    assert order == [gate for gate in Gate if gate in order]


def test_suspicion_weights_and_a_new_bar_end_no_registration():
    """Unknown is never no: admission gates keep newcomers out and evict nobody."""
    assert (
        standing(
            UP,
            WorkerSuspected(worker=W, incarnation=1, reason="slow"),
            WeightsLoaded(worker=W, incarnation=1, version=1),
            WeightsPublished(pool="rollout", version=9),
        )
        is None
    )


def test_a_pool_may_keep_its_suspended_workers():
    policy = Policy(
        fleet=FLEET,
        pools={"rollout": PoolPolicy(deregister_suspended=False)},
        proxies={PROXY.name: PROXY},
    )
    assert standing(UP, WorkerSuspended(worker=W, incarnation=1), policy=policy) is None


# ---------------------------------------------------------------- cells


@pytest.mark.parametrize(
    ("facts", "gap"),
    [
        ([rank(0), rank(1)], None),
        ([rank(0)], "1 of 2 ranks"),
        ([rank(0), rank(1, fact=WorkerStarted)], "1 of 2 ranks"),
        ([rank(0), rank(1), rank(1, fact=WorkerDown, evidence="exited")], "1 of 2 ranks"),
        ([rank(0), rank(1, cell_incarnation=2)], "1 of 2 ranks serve in cell incarnation 1"),
        ([rank(0, 2), rank(1, 2)], None),
        ([rank(0, size=3), rank(1, size=3), rank(7, size=3)], "2 of 3 ranks"),
        ([rank(0), rank(1), WorkerForgotten(worker="rollout-3-1", **BY)], "1 of 2 ranks"),
    ],
)
def test_a_cell_is_complete_when_all_its_ranks_serve_in_one_cell_incarnation(facts, gap):
    held = standing(*facts, name="rollout-3-0")
    assert held is None if gap is None else (held.gate is Gate.CELL_COMPLETE and gap in held.reason)


def test_a_new_life_that_says_nothing_of_a_cell_is_one_of_its_own():
    assert standing(rank(0), WorkerUp(worker="rollout-3-0", incarnation=2), name="rollout-3-0") is None


@pytest.mark.parametrize(
    ("declared", "facts", "gap"),
    [
        ((2, 1), [rank(0, size=1), rank(1, size=1)], None),
        ((2, 1), [rank(0, size=1)], "1 of 2 ranks"),
        ((2, 2), [rank(0), rank(1)], "it is of cell incarnation 1, 2 is declared"),
        ((3, 1), [rank(0, 2), rank(1, 2)], None),
        ((1, 2), [rank(0), rank(1)], None),
    ],
)
def test_a_declaration_says_the_size_unless_the_cell_is_newer(declared, facts, gap):
    size, cell_incarnation = declared
    said = CellDeclared(pool="rollout", cell="3", size=size, cell_incarnation=cell_incarnation)
    held = standing(said, *facts, name="rollout-3-0")
    assert held is None if gap is None else (held.gate is Gate.CELL_COMPLETE and gap in held.reason)


# ---------------------------------------------------------------- admission


@pytest.mark.parametrize(
    ("loaded", "published", "reason"),
    [
        ([], [], None),
        ([3], [], None),
        ([3], [3], None),
        ([3], [2], None),
        ([2], [3], "it holds version 2 of the weights; version 3 is published"),
        ([0], [3], "it holds version 0 of the weights; version 3 is published"),
        ([], [3], "it has not said what weights it holds; version 3 is published"),
        ([3], [9, 3], None),
        ([5, 3], [5], "it holds version 3 of the weights; version 5 is published"),
    ],
)
def test_weights_are_current_at_the_bar_published_last(loaded, published, reason):
    facts = [WeightsPublished(pool="rollout", version=version) for version in published]
    facts += [WeightsLoaded(worker=W, incarnation=1, version=version) for version in loaded]
    roster = folded(UP, *facts, WeightsPublished(pool="reward", version=99)).roster
    held = gates.weights(roster, POLICY, roster.workers[W])
    assert held == (None if reason is None else Held(Gate.WEIGHTS_CURRENT, reason))


ADDRESS = {"primary": HostAndPort("10.0.0.1", 8000)}


@pytest.mark.parametrize(
    ("located", "reason"),
    [
        (Located(ADDRESS, 2), None),
        (Located(ADDRESS, 0), None),
        (Located(ADDRESS, 1), "answers for incarnation 1, the log is at 2"),
        (Located(ADDRESS, 3), "answers for incarnation 3, the log is at 2"),
        (Located(ADDRESS, 2, alive=False), "dead"),
        (Located({}, 2), "no address yet"),
    ],
)
def test_the_address_must_be_of_this_very_life(located, reason):
    """[I2] [I6]; 0 is what a provider says that cannot tell."""
    worker = folded(WorkerUp(worker=W, incarnation=2)).roster.workers[W]
    held = gates.address(worker, located)
    assert held is None if reason is None else (held.gate is Gate.ADDRESS_KNOWN and reason in held.reason)


@pytest.mark.parametrize(
    ("template", "url"),
    [
        ("http://{primary}", "http://10.0.0.1:8000"),
        ("http://{session}/v1", "http://[::1]:9000/v1"),
        ("http://{primary}/{session}", "http://10.0.0.1:8000/[::1]:9000"),
    ],
)
def test_a_template_is_filled_from_the_named_addresses(template, url):
    located = Located({**ADDRESS, "session": HostAndPort("::1", 9000)}, 1)
    assert gates.worker_url(template, located) == url


@pytest.mark.parametrize(
    ("addresses", "known"),
    [({"session": HostAndPort("h", 1), "admin": HostAndPort("h", 2)}, "admin, session"), ({}, "none")],
)
def test_a_template_that_names_an_unknown_address_says_which_are_known(addresses, known):
    held = gates.worker_url("http://{primary}", Located(addresses, 1))
    assert held == Held(Gate.ADDRESS_KNOWN, f"its url template names 'primary'; the provider knows: {known}")


def test_i9_a_cell_of_any_size_is_counted_at_once():
    """Rank and size are anybody's numbers; walking through all ranks up to the size would stop the fold for days."""
    big = WorkerUp(worker=W, incarnation=1, rank=2**51, entrypoint=True, cell_size=2**50, cell_incarnation=1)
    assert standing(big) == Held(Gate.CELL_COMPLETE, f"0 of {2**50} ranks serve in cell incarnation 1")


def test_after_a_run_has_ended_nobody_is_registered_until_another_begins():
    later = WorkerUp(worker=W, incarnation=2)
    assert standing(FleetStarted(run_id="one"), FleetEnded(run_id="one"), later) == Held(Gate.SERVING, "run one ended")
    assert standing(FleetEnded(run_id="one"), later) == Held(Gate.SERVING, "the run ended")
    assert standing(FleetEnded(run_id="one"), FleetStarted(run_id="two"), later) is None
