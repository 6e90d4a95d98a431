"""Pools in pairs: no newcomer while the other half is missing, nobody evicted when it goes, and everybody told why."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.core import FLEET, folded
from support.fleet import NEVER, Fleet, on_virtual_time

from rollbook.events import Deregistering, WeightsLoaded, WeightsPublished, WorkerCordoned, WorkerDown, WorkerUp
from rollbook.projections.deciding import gates
from rollbook.projections.deciding.gates import Gate
from rollbook.projections.history.judged import verdict
from rollbook.projections.looking.look import Look
from rollbook.projections.looking.status import Standing
from rollbook.projections.policy import Policy, PoolPolicy, ProxyPolicy

P, D = "prefill-0-0", "decode-0-0"
ROUTER = ProxyPolicy(name="router", pools=("prefill", "decode"))


def policy_of(**pool):
    pools = {"prefill": PoolPolicy(role="prefill", paired_with="decode", **pool), "decode": PoolPolicy(role="decode")}
    return Policy(fleet=FLEET, pools=pools, proxies={"router": ROUTER})


def up(worker, incarnation=1):
    return WorkerUp(worker=worker, incarnation=incarnation)


def gate(worker, *facts, policy=None):
    roster = folded(*facts).roster
    held = gates.admission_by_log(roster, policy or policy_of(), ROUTER, roster.workers[worker])
    return None if held is None else held.gate


def test_either_of_a_pair_names_the_other():
    policy = policy_of()
    assert (policy.partner("prefill"), policy.partner("decode"), policy.partner("rollout")) == (
        "decode",
        "prefill",
        None,
    )


@pytest.mark.parametrize(
    ("worker", "facts", "expected"),
    [
        (D, [up(D)], Gate.PAIR_READY),
        (P, [up(P)], Gate.PAIR_READY),
        (D, [up(D), up(P)], None),
        (P, [up(D), up(P)], None),
        (D, [up(D), up(P), WorkerDown(worker=P, incarnation=1, evidence="timeout")], Gate.PAIR_READY),
        (D, [up(D), up(P), WorkerCordoned(worker=P, by="ann", why="x")], Gate.PAIR_READY),
        (D, [up(D), up(P), up("prefill-1-0"), WorkerDown(worker=P, incarnation=1, evidence="exited")], None),
        # It may be in since before the version was published; a new life is not, before it has loaded it.
        (D, [up(D), up(P), WeightsPublished(pool="prefill", version=2)], None),
        (D, [up(D), WeightsPublished(pool="prefill", version=2), up(P)], Gate.PAIR_READY),
        (
            D,
            [
                up(D),
                WeightsPublished(pool="prefill", version=2),
                up(P),
                WeightsLoaded(worker=P, incarnation=1, version=2),
            ],
            None,
        ),
    ],
)
def test_a_half_waits_for_the_other(worker, facts, expected):
    assert gate(worker, *facts) is expected


def test_who_was_removed_for_its_weights_is_nobodys_partner():
    facts = [up(D), up(P), WeightsPublished(pool="prefill", version=2)]
    assert gate(D, *facts, policy=policy_of(stale="remove")) is Gate.PAIR_READY


@given(st.lists(st.tuples(st.sampled_from(["up", "down"]), st.sampled_from([P, D, "prefill-1-0", "decode-1-0"]))))
def test_the_two_never_wait_for_each_other(said):
    """[I1] as soon as one of each serves, both pass, in whatever order they came."""
    facts, lives, serving = [], {}, set()
    for act, name in said:
        if act == "up":
            lives[name] = lives.get(name, 0) + 1
            facts.append(up(name, lives[name]))
            serving.add(name)
        elif name in lives:
            facts.append(WorkerDown(worker=name, incarnation=lives[name], evidence="exited"))
            serving.discard(name)
    for name in serving:
        other = "decode" if name.startswith("prefill") else "prefill"
        there = any(one.startswith(other) for one in serving)
        assert gate(name, *facts) is (None if there else Gate.PAIR_READY)


def test_the_story_tells_of_a_pair_only_where_there_is_one():
    roster = folded(up(D), up("rollout-0-0")).roster
    assert verdict(roster, policy_of(), ROUTER, D).failed.gate == "pair_ready"
    everywhere = msgspec.structs.replace(ROUTER, pools=("rollout",))
    passed = verdict(roster, policy_of(), everywhere, "rollout-0-0").gates
    assert passed[-1].gate == "weights_current"


# ---------------------------------------------------------------- through a lane


def paired(**paces):
    fleet = Fleet(**paces)
    served = ProxyPolicy(name="a", pools=("prefill", "decode"))
    fleet.policy = msgspec.structs.replace(fleet.policy, pools=policy_of().pools, proxies={"a": served})
    return fleet


async def look(fleet):
    leading = fleet.controller.leading
    taken = await Look(
        fleet.policy,
        leading.projector.state,
        proxies=fleet.proxies,
        provider=fleet.provider,
        admission=leading.admission,
    ).take("")
    return taken, {worker.name: worker.registrations[0] for worker in taken.workers}


@on_virtual_time
async def test_both_are_registered_as_soon_as_both_are_there():
    """Not when the pause of the last refusal is over."""
    fleet = paired(resync=NEVER, backoff_first=NEVER, backoff_most=NEVER)
    await fleet.start()
    await fleet.up(D, port=8000)
    await fleet.until(lambda: fleet.controller.lanes["a"].held)
    assert fleet.controller.lanes["a"].held[D].gate is Gate.PAIR_READY
    await fleet.up(P, port=8001)
    await fleet.registered(D)
    await fleet.registered(P)


@on_virtual_time
async def test_the_last_prefill_takes_no_decode_with_it_and_status_says_what_is_missing():
    """[I4] unknown is never no: they stay, nothing is called, and the pair is whole again with the next life."""
    fleet = paired(resync=1.0)
    await fleet.start()
    for number, name in enumerate([P, D, "decode-1-0"]):
        await fleet.up(name, port=8000 + number)
    for name in (P, D, "decode-1-0"):
        await fleet.registered(name)
    await fleet.down(P)
    await fleet.until(lambda: len(fleet.proxy.listed) == 2)
    calls = len(fleet.proxy.calls)
    await fleet.clock.sleep(30)
    await fleet.up("decode-2-0", port=8003)
    await fleet.clock.sleep(30)
    taken, at = await look(fleet)
    assert taken.converged
    assert (at[D].state, at[D].gate, at["decode-2-0"].state) == (Standing.REGISTERED, "pair_ready", Standing.OUT)
    assert taken.proxies[0].unpaired == {"decode": "prefill"}
    assert [call.verb for call in fleet.proxy.calls[calls:] if call.verb in {"add", "remove"}] == []
    await fleet.up(P, incarnation=2, port=8000)
    await fleet.registered(P, incarnation=2)
    await fleet.registered("decode-2-0")
    assert [fact.worker for fact in fleet.facts(Deregistering)] == [P]
    assert (await look(fleet))[0].proxies[0].unpaired == {}
