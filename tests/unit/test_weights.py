"""Weights: who holds a version that its pool takes, and who leaves when a new one is published."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.core import FLEET, PROXY, folded

from rollbook.events import (
    Deregistered,
    Deregistering,
    FleetStarted,
    Registered,
    Registering,
    RegistrationFailed,
    WeightsLoaded,
    WeightsPublished,
    WorkerCordoned,
    WorkerDown,
    WorkerUp,
)
from rollbook.projections.deciding import gates
from rollbook.projections.deciding.outdated import outdated
from rollbook.projections.looking.updating import ended, participants
from rollbook.projections.policy import Policy, PoolPolicy

W = "rollout-0-0"
UNSAID = "it has not said what weights it holds; version 9 is published"


def policy_of(**pool):
    return Policy(fleet=FLEET, pools={"rollout": PoolPolicy(**pool)}, proxies={PROXY.name: PROXY})


def up(worker=W, incarnation=1):
    return WorkerUp(worker=worker, incarnation=incarnation)


def loaded(version, worker=W, incarnation=1):
    return WeightsLoaded(worker=worker, incarnation=incarnation, version=version)


def published(version, pool="rollout"):
    return WeightsPublished(pool=pool, version=version)


def held(facts, **pool):
    roster = folded(*facts).roster
    found = gates.weights(roster, policy_of(**pool), roster.workers[W])
    return None if found is None else found.reason


# ---------------------------------------------------------------- the gate


@pytest.mark.parametrize(
    ("facts", "pool", "reason"),
    [
        ([up(), published(9)], {"require_weights": False}, None),
        ([up(), loaded(7), published(9)], {"max_lag": 2}, None),
        (
            [up(), loaded(6), published(9)],
            {"max_lag": 2},
            "it holds version 6 of the weights; version 9 is published, which it may lag 2 behind",
        ),
        # A life before it, whatever it held.
        ([up(), loaded(9), published(9), up(incarnation=2)], {}, UNSAID),
        ([up(), published(9), up(incarnation=2), loaded(9, incarnation=1)], {}, UNSAID),
        ([up(), published(9), loaded(9, incarnation=2)], {}, None),
        # Resumed from an older checkpoint: what the given-up run left behind is not the weights of this one.
        (
            [up(), loaded(9), published(9), published(5)],
            {},
            "it holds version 9 of the weights, and version 5 was published after it",
        ),
        ([up(), loaded(9), published(9), published(5), loaded(5)], {}, None),
        ([up(), loaded(5), published(9), published(5)], {}, None),
        # Loaded first, published then: nobody is out in between.
        ([up(), published(5), loaded(6)], {}, None),
        ([up(), published(5), loaded(6), published(6)], {}, None),
        ([FleetStarted(run_id="1"), up(), published(5), FleetStarted(run_id="2"), up(incarnation=2)], {}, None),
    ],
)
def test_a_version_passes_if_it_is_published_or_within_the_lag_or_ahead(facts, pool, reason):
    assert held(facts, **pool) == reason


@given(st.lists(st.tuples(st.sampled_from(["publish", "load"]), st.integers(0, 6)), max_size=12), st.integers(0, 3))
def test_only_a_published_version_or_a_newer_one_passes(said, lag):
    """Against the rule said once more, over all orders of publishing and loading."""
    facts, bar, bar_at, mine, mine_at = [up()], None, 0, None, 0
    for at, (act, version) in enumerate(said):
        facts.append(published(version) if act == "publish" else loaded(version))
        if act == "publish":
            bar, bar_at = version, at
        else:
            mine, mine_at = version, at
    passes = bar is None or (mine is not None and (bar - lag <= mine <= bar or (mine > bar and mine_at > bar_at)))
    assert (held(facts, max_lag=lag) is None) == passes


# ---------------------------------------------------------------- who leaves


def registered(worker, incarnation=1):
    at = {"proxy": PROXY.name, "worker": worker, "incarnation": incarnation, "url": f"http://{worker}:1"}
    return [Registering(**at), Registered(**at)]


def about(kind, worker, **fields):
    return kind(proxy=PROXY.name, worker=worker, incarnation=1, url=f"http://{worker}:1", **fields)


def pool_of(size):
    names = [f"rollout-{number}-0" for number in range(size)]
    return names, [fact for name in names for fact in (up(name), loaded(1, name), *registered(name))]


def leaving(facts, **pool):
    return set(outdated(folded(*facts), policy_of(**pool), PROXY))


def test_a_new_version_evicts_nobody_unless_the_pool_says_so():
    names, facts = pool_of(4)
    facts += [published(2), loaded(2, names[0])]
    assert leaving(facts) == set()
    assert leaving(facts, stale="remove") == set(names[1:])
    assert leaving(facts, stale="remove", max_lag=1) == set()
    assert leaving(facts, stale="remove", require_weights=False) == set()


def test_one_leaves_for_each_that_holds_the_new_version_the_oldest_first():
    names, facts = pool_of(5)
    facts += [loaded(0, names[3]), published(2)]
    assert leaving(facts, stale="replace") == set()
    facts.append(loaded(2, names[1]))
    assert leaving(facts, stale="replace") == {names[3]}
    facts += [about(Deregistering, names[3])]
    assert leaving(facts, stale="replace") == {names[3]}  # asked again right before the call
    facts += [about(Deregistered, names[3])]
    assert leaving(facts, stale="replace") == set()  # it has left, and nobody else came
    facts.append(loaded(2, names[4]))
    assert leaving(facts, stale="replace") == {names[0]}


def test_a_removal_that_failed_is_still_that_ones():
    names, facts = pool_of(3)
    facts += [published(2), loaded(2, names[2])]
    first = leaving(facts, stale="replace")
    facts += [about(Deregistering, names[0]), about(RegistrationFailed, names[0], action="deregister", reason="503")]
    assert leaving(facts, stale="replace") == first == {names[0]}


def test_who_does_not_belong_there_anyway_is_nobodys_replacement():
    names, facts = pool_of(3)
    facts += [published(2), loaded(2, names[0]), WorkerCordoned(worker=names[0], by="ann", why="x")]
    assert leaving(facts, stale="replace") == set()


@given(
    st.integers(1, 8),
    st.lists(st.tuples(st.sampled_from(["load", "leave", "restart"]), st.integers(0, 7)), max_size=25),
)
def test_half_of_a_pool_stays_whatever_the_order(size, acts):
    """[I4] by replacement never more than one leaves for one that is there with the new version."""
    names, facts = pool_of(size)
    facts.append(published(2))
    lives = dict.fromkeys(names, 1)
    there = set(names)
    for act, number in acts:
        name = names[number % size]
        if act == "load" and lives[name] == 1:
            facts.append(loaded(2, name))
            if name not in there:
                facts += registered(name)
                there.add(name)
        elif act == "restart" and lives[name] == 1:
            # It waits for its weights, and its old entry goes with its old life.
            lives[name] = 2
            facts += [up(name, 2), about(Deregistering, name), about(Deregistered, name)]
            there.discard(name)
        elif act == "leave" and (gone := leaving(facts, stale="replace")):
            workers = folded(*facts).roster.workers
            for one in sorted(gone):
                facts += [about(Deregistering, one), about(Deregistered, one)]
            there -= gone
            current = {one for one in there if workers[one].weights == 2}
            assert all(workers[one].weights == 1 for one in gone)
            assert size - len(there) <= len(current)
            assert 2 * len(there) >= size


# ---------------------------------------------------------------- an update


@given(
    st.sets(st.integers(0, 3)),
    st.lists(st.tuples(st.sampled_from(["restart", "load", "load itself", "down"]), st.integers(0, 3)), max_size=15),
)
def test_only_a_life_that_was_there_at_the_beginning_is_ready_at_the_end(late, acts):
    """[I3] what is said of a life that is over marks no other one."""
    names = [f"rollout-{number}-0" for number in range(4)]
    facts = [up(name) for number, name in enumerate(names) if number not in late]
    snapshot = participants(folded(*facts).roster, ["rollout"])
    assert snapshot == {name: 1 for number, name in enumerate(names) if number not in late}
    facts.append(published(2))
    lives = {name: snapshot.get(name, 0) for name in names}
    dead, said, own = set(), set(), set()
    for act, number in acts:
        name = names[number]
        if act == "restart":
            lives[name] += 1
            facts.append(up(name, lives[name]))
            dead.discard(name)
            own.discard(name)
        elif act == "down" and lives[name]:
            facts.append(WorkerDown(worker=name, incarnation=lives[name], evidence="exited"))
            dead.add(name)
        elif act == "load":
            said.add(name)
            if name in snapshot:
                facts.append(loaded(2, name, snapshot[name]))
        elif act == "load itself" and lives[name]:
            own.add(name)
            facts.append(loaded(2, name, lives[name]))
    state = folded(*facts)
    found = ended(state.roster, 2, snapshot, said)
    same = {name for name in snapshot if lives[name] == snapshot[name] and name not in dead}
    assert set(found.ready) == same & said
    assert set(found.restarted) == {name for name in snapshot if lives[name] != snapshot[name] and name not in dead}
    assert set(found.gone) == dead & snapshot.keys()
    assert set(found.strangers) == said - snapshot.keys()
    assert found.complete == (set(found.ready) == snapshot.keys())
    for name in names:
        if lives[name] and name not in dead:
            passes = gates.weights(state.roster, policy_of(), state.roster.workers[name]) is None
            assert passes == (name in own or (name in same and name in said))
