"""What can be wrong with the description of a worker, each said in one sentence."""

import pytest

from rollbook.adapters.demo.worker import DemoWorker
from rollbook.adapters.ray.spec import (
    InvalidSpec,
    Says,
    WorkerSpec,
    WorkerState,
    check_specs,
    decode_specs,
    decode_states,
    encode_specs,
    encode_states,
    import_path,
)
from rollbook.projections.ports import HostAndPort, Identity

ACTOR = "package.module:Class"


class InATest:
    class Inner:
        pass


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"name": "rollout 0"}, "' ' is not allowed"),
        ({"name": ""}, "it is empty"),
        ({"name": "free"}, "its name does not say its pool"),
        ({"pool": "a.b"}, "cannot name a pool"),
        ({"actor": "package.module.Class"}, "is no import path; write module:Class"),
        ({"actor": ":Class"}, "is no import path"),
        ({"actor": "module:"}, "is no import path"),
        ({"port": 65536}, "port 65536 is no port"),
        ({"port": -1}, "port -1 is no port"),
        ({"ready_path": "health"}, "must begin with '/'"),
        ({"identity": Says()}, "identity names either a header, or a path and a field"),
        ({"identity": Says(header="x-worker", path="/info", field="w")}, "identity names either a header, or a path"),
        ({"identity": Says(path="/info")}, "identity names either a header, or a path and a field"),
        ({"identity": Says(path="info", field="w")}, "identity.path 'info' must begin with '/'"),
        ({"identity": Says(header="x-worker"), "ready_path": None}, "identity is asked for at ready_path"),
        ({"start_seconds": 0}, "start_seconds is 0; it must be more than 0"),
        ({"stop_seconds": float("inf")}, "stop_seconds is inf"),
        ({"start_seconds": float("nan")}, "start_seconds is nan"),
        ({"rank": -1}, "rank -1 is less than 0"),
        ({"max_restarts": -1}, "max_restarts is -1"),
        ({"kwargs": {"port": 1, "name": "x"}}, "kwargs may not hold name, port"),
        ({"ray_options": {"max_restarts": 3}}, "ray_options may not hold max_restarts"),
        ({"kwargs": {"model": object()}}, "kwargs must be JSON values"),
        ({"kwargs": {"limits": (1, 2)}}, "kwargs must be JSON values"),
        ({"ray_options": {1: 2}}, "ray_options must be JSON values"),
    ],
)
def test_a_spec_that_cannot_be_started_is_refused(fields, problem):
    with pytest.raises(InvalidSpec) as refused:
        WorkerSpec(**{"name": "rollout-0-0", "actor": ACTOR} | fields)
    assert problem in str(refused.value)
    assert str(refused.value).startswith("worker ")


def test_two_workers_of_one_name_are_refused():
    spec = WorkerSpec(name="rollout-0-0", actor=ACTOR)
    with pytest.raises(InvalidSpec, match="'rollout-0-0' is described twice"):
        check_specs([spec, WorkerSpec(name="rollout-1-0", actor=ACTOR), spec])


def test_a_class_is_named_by_its_import_path():
    assert import_path(DemoWorker) == "rollbook.adapters.demo.worker:DemoWorker"


def test_a_class_that_others_cannot_import_is_refused():
    with pytest.raises(InvalidSpec, match="put the class at the top of a module"):
        import_path(InATest.Inner)


def test_specs_survive_the_way_to_the_manager():
    specs = [
        WorkerSpec(name="rollout-0-0", actor=ACTOR),
        WorkerSpec(
            name="free",
            pool="judge",
            cell="a",
            rank=1,
            entrypoint=True,
            actor=ACTOR,
            kwargs={"model": "m", "limits": [1, 2.5, None]},
            port=8000,
            keep_port=False,
            ready_path=None,
            max_restarts=3,
            ray_options={"num_gpus": 1, "runtime_env": {"env_vars": {"A": "b"}}},
        ),
    ]
    assert decode_specs(encode_specs(specs)) == specs


@pytest.mark.parametrize("data", [b"", b"{}", b'[{"name": "rollout-0-0"}]', b'[{"name": "a b", "actor": "m:C"}]'])
def test_what_is_no_list_of_specs_is_refused(data):
    with pytest.raises(InvalidSpec, match="cannot be read"):
        decode_specs(data)


def test_states_survive_the_way_back():
    states = [
        WorkerState(name="a", stage="waiting", reason="no number"),
        WorkerState(name="b", stage="serving", incarnation=3, addresses={"primary": HostAndPort("::1", 80)}, pid=7),
    ]
    assert decode_states(encode_states(states)) == {state.name: state for state in states}
    assert [state.alive for state in states] == [False, True]


def test_a_worker_says_its_name_or_what_it_is_given_to_say():
    def identity(**says):
        return WorkerSpec(name="rollout-0-0", actor=ACTOR, identity=Says(**says)).identity_of(7)

    assert WorkerSpec(name="rollout-0-0", actor=ACTOR).identity_of(7) is None
    assert identity(header="x-worker") == Identity("rollout-0-0", header="x-worker")
    assert identity(path="/server_info", field="id", value="{name}/{incarnation}") == Identity(
        "rollout-0-0/7", path="/server_info", field="id"
    )


def test_an_identity_goes_the_way_of_specs_and_states():
    spec = WorkerSpec(name="rollout-0-0", actor=ACTOR, identity=Says(header="x-worker"))
    assert decode_specs(encode_specs([spec])) == [spec]
    state = WorkerState(name="rollout-0-0", stage="serving", identity=spec.identity_of(1))
    assert decode_states(encode_states([state])) == {"rollout-0-0": state}
