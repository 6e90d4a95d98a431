"""The catalogue of facts against the table of semantics.md, 1, and the limits on their fields."""

import msgspec
import pytest
from golden.examples import EXAMPLES

from rollbook.events import FACTS, Codec, InvalidFact, InvalidName, WeightsLoaded, WorkerDown, WorkerUp, type_of
from rollbook.events.facts.base import MAX_INTEGER

TABLE = {
    "worker": "WorkerStarted WorkerUp WorkerDown WorkerSuspected WorkerSuspended WorkerResumed WorkerDraining "
    "WorkerRetired WeightsLoaded RecoveryStarted RecoveryFailed",
    "fleet": "FleetStarted FleetEnded CellDeclared WeightsPublished FleetObserved ObserverSilent",
    "operator": "WorkerCordoned WorkerUncordoned WorkerForgotten DrainRequested ReconcileHeld ReconcileReleased",
    "proxy": "Registering Registered Deregistering Deregistered RegistrationFailed DriftFound RemovalWithheld "
    "ForeignRemoving ForeignRemoved ForeignRemovalFailed "
    "ProxyUnreachable ProxyReachable LeadershipTaken",
    "quarantine": "MessageQuarantined",
}


def draft(fact, **changed):
    return Codec("f").draft(fact, **({"id": "i", "time": "t", "publisher": "p"} | changed))


def test_every_fact_of_the_table_exists_and_no_other():
    expected = {(family, name) for family, names in TABLE.items() for name in names.split()}
    assert {(cls.FAMILY, cls.__name__) for cls in FACTS.values()} == expected


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("WorkerUp", "rollbook.worker.up.v1"),
        ("WeightsLoaded", "rollbook.worker.weights_loaded.v1"),
        ("RecoveryStarted", "rollbook.worker.recovery_started.v1"),
        ("FleetObserved", "rollbook.fleet.observed.v1"),
        ("WorkerCordoned", "rollbook.operator.worker_cordoned.v1"),
        ("RegistrationFailed", "rollbook.proxy.registration_failed.v1"),
        ("ProxyReachable", "rollbook.proxy.reachable.v1"),
        ("MessageQuarantined", "rollbook.quarantine.message_quarantined.v1"),
    ],
)
def test_types_are_named_by_the_rule(name, kind):
    assert FACTS[kind].__name__ == name
    assert type_of(EXAMPLES[kind]) == kind


@pytest.mark.parametrize("kind", FACTS)
def test_facts_are_frozen_and_every_field_is_in_the_example(kind):
    fact = EXAMPLES[kind]
    first = fact.__struct_fields__[0]
    with pytest.raises(AttributeError):
        setattr(fact, first, getattr(fact, first))
    left_out = set(fact.__struct_fields__) - set(msgspec.json.decode(msgspec.json.encode(fact)))
    assert left_out <= {"proxy"}, "golden/examples.py leaves fields at their default"


@pytest.mark.parametrize("size", [0, 2, 8])
def test_a_cell_of_several_names_its_incarnation(size):
    with pytest.raises(InvalidFact, match="rollout-0-0: a fact about a cell of"):
        WorkerUp(worker="rollout-0-0", incarnation=1, cell_size=size)
    assert size == 0 or WorkerUp(worker="rollout-0-0", incarnation=1, cell_size=size, cell_incarnation=1)


@pytest.mark.parametrize("name", ["", "a.b", "a b", "a\n", "*", ">", "a" * 129])
def test_a_fact_about_a_bad_name_is_refused_when_it_is_written(name):
    with pytest.raises(InvalidName, match="cannot name a worker"):
        draft(WorkerUp(worker=name, incarnation=1))


@pytest.mark.parametrize(
    "fact",
    [
        WorkerUp(worker="w", incarnation=0),
        WorkerUp(worker="w", incarnation=-1),
        WorkerUp(worker="w", incarnation=MAX_INTEGER + 1),
        WorkerUp(worker="w", incarnation=10**30),
        WorkerUp(worker="w", incarnation=1.5),
        WorkerUp(worker="w", incarnation="1"),
        WorkerUp(worker="w", incarnation=None),
        WorkerUp(worker="w", incarnation=object()),
        WorkerUp(worker="w", incarnation=1, pool="a.b"),
        WorkerUp(worker="w", incarnation=1, pool="a\n"),
        WorkerUp(worker="w", incarnation=1, seen=-1),
        WeightsLoaded(worker="w", incarnation=1, version=2**63),
        WorkerDown(worker="w", incarnation=1, evidence="hearsay"),
        WorkerDown(worker="w", incarnation=1, evidence="exited", reason="\ud800"),
        WorkerDown(worker="w", incarnation=1, evidence="exited", reason="x" * 900_000),
    ],
    ids=lambda fact: repr(fact).partition(" at 0x")[0][:60],
)
def test_a_fact_that_could_not_be_read_is_refused_when_it_is_written(fact):
    with pytest.raises(InvalidFact, match="about w") as caught:
        draft(fact)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("changed", [{"id": ""}, {"id": "i" * 257}, {"time": "t" * 65}, {"publisher": "p" * 300}])
def test_an_envelope_that_could_not_be_read_is_refused_when_it_is_written(changed):
    with pytest.raises(InvalidFact):
        draft(WorkerUp(worker="w", incarnation=1), **changed)


def test_a_class_outside_the_catalogue_has_no_type():
    class WorkerDanced(WorkerUp, frozen=True, kw_only=True):
        pass

    with pytest.raises(InvalidFact, match="WorkerDanced is not in the catalogue"):
        draft(WorkerDanced(worker="w", incarnation=1))
