"""What can be wrong with the description of a worker, each said in one sentence."""

import pytest

from rollbook.adapters.demo.worker import DemoWorker
from rollbook.adapters.ray.checking import bundle_of, cells_of
from rollbook.adapters.ray.ports import PortInfo
from rollbook.adapters.ray.spec import (
    CommandWorkerSpec,
    InvalidSpec,
    Says,
    ServeWorkerSpec,
    WorkerState,
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
        ({"ports": (PortInfo(port=65536),)}, "port 65536 is no port"),
        ({"ports": (PortInfo(name="rank0"),)}, "no port can be called rank0: templates mean something else"),
        ({"env": {"A": "{"}}, "braces that are to stay are written twice"),
        ({"env": {"A": 1}}, "env must be text"),
        ({"env": {"": "x"}}, "env: '' can be no variable's name"),
        ({"env": {"A=B": "x"}}, "env: 'A=B' can be no variable's name"),
        ({"env": {"A": "\0"}}, "env: the value of A holds a NUL character"),
        (
            {"urls": {"primary": "http://{adress}"}},
            "url of 'primary' names {adress}; there are {address}, {host}, {port}",
        ),
        ({"placement": "TIGHT"}, "placement 'TIGHT' is none of PACK, SPREAD"),
        ({"placement": "PACK", "ray_options": {"scheduling_strategy": "SPREAD"}}, "not hold scheduling_strategy tog"),
        ({"placement": "PACK", "ray_options": {"num_cpus": 0}}, "placement needs something to reserve"),
        ({"restart": "nobody"}, "restart 'nobody' is neither"),
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
        ServeWorkerSpec(**{"name": "rollout-0-0", "actor": ACTOR} | fields)
    assert problem in str(refused.value)
    assert str(refused.value).startswith("worker ")


def test_two_workers_of_one_name_are_refused():
    spec = ServeWorkerSpec(name="rollout-0-0", actor=ACTOR)
    with pytest.raises(InvalidSpec, match="'rollout-0-0' is described twice"):
        cells_of([spec, ServeWorkerSpec(name="rollout-1-0", actor=ACTOR), spec])


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"command": " "}, "its command is empty"),
        ({"command": "serve \0"}, "its command holds a NUL character"),
        ({"command": "serve", "cwd": "a\0b"}, "cwd holds a NUL character"),
        ({"command": "serve {port}!"}, None),
        ({"command": "serve {primary!r}"}, "neither '!' nor ':'"),
        ({"command": "serve", "ports": ()}, "ready_path is asked at its port 'primary', which it does not have"),
    ],
)
def test_a_command_that_cannot_be_run_is_refused(fields, problem):
    if problem is None:
        fields = {"command": "serve {port}"}
        with pytest.raises(InvalidSpec, match="there is no port 'port', only primary"):
            cells_of([CommandWorkerSpec(name="rollout-0-0", **fields)])
        return
    with pytest.raises(InvalidSpec) as refused:
        CommandWorkerSpec(**{"name": "rollout-0-0"} | fields)
    assert problem in str(refused.value)


def ranks(*numbers, **fields):
    return [CommandWorkerSpec(**{"name": f"rollout-0-{rank}", "command": "serve"} | fields) for rank in numbers]


def test_workers_of_one_pool_and_cell_are_a_cell_by_rank():
    alone = [CommandWorkerSpec(name=name, pool="rollout", command="serve") for name in ("a", "b")]
    free = [
        CommandWorkerSpec(name=name, pool="p", cell="c", rank=rank, command="x") for name, rank in (("y", 1), ("x", 0))
    ]
    found = cells_of([*ranks(1, 0), *alone, *free])
    assert {key: [spec.name for spec in specs] for key, specs in found.items()} == {
        "rollout/0": ["rollout-0-0", "rollout-0-1"],
        "rollout//a": ["a"],
        "rollout//b": ["b"],
        "p/c": ["x", "y"],
    }
    assert [spec.name for spec in cells_of(ranks(3))["rollout/0"]] == ["rollout-0-3"]


@pytest.mark.parametrize(
    ("specs", "problem"),
    [
        (ranks(0, 2), "cell rollout/0: its 2 workers must have the ranks 0 to 1, each once: rollout-0-0 has 0, roll"),
        ([*ranks(0), *ranks(1, rank=0)], "must have the ranks 0 to 1"),
        ([*ranks(0), *ranks(1, restart="recoverer")], "rollout-0-0 and rollout-0-1 differ in restart"),
        ([*ranks(0), *ranks(1, placement="PACK")], "differ in placement"),
        (ranks(0, 1, command="{rpc}"), "rollout-0-0: {rpc}: there is no port 'rpc'"),
        (ranks(0, command="{primary[1]}"), "rollout-0-0: {primary[1]}: port 'primary' has a count of 1"),
        (ranks(0, 1, env={"M": "{rank0.primary[2].port}"}), "{rank0.primary[2].port}: port 'primary' has a count of 1"),
        ([*ranks(0), *ranks(1, command="{rank0.rpc}")], "rollout-0-1: {rank0.rpc}: there is no port 'rpc'"),
        (
            [*ranks(0), *ranks(1, command="{m}", ports=(PortInfo(), PortInfo(name="m", per="master")))],
            "rollout-0-1: {m}: there is no port 'm'",
        ),
    ],
)
def test_workers_that_are_no_cell_are_refused(specs, problem):
    with pytest.raises(InvalidSpec) as refused:
        cells_of(specs)
    assert problem in str(refused.value)


def test_what_the_master_listens_on_every_rank_may_name():
    cells_of(ranks(0, 1, command="{master} {rank0.primary}", ports=(PortInfo(), PortInfo(name="master", per="master"))))


@pytest.mark.parametrize(
    ("options", "bundle"),
    [
        ({}, {"CPU": 1}),
        ({"num_cpus": 0, "num_gpus": 0.5}, {"GPU": 0.5}),
        ({"num_cpus": 2, "resources": {"nvme": 1, "none": 0}, "memory": 100}, {"CPU": 2, "nvme": 1, "memory": 100}),
        ({"num_cpus": 0, "resources": None}, {}),
        ({"num_cpus": 0, "num_gpus": 1, "accelerator_type": "H100"}, {"GPU": 1, "accelerator_type:H100": 0.001}),
        ({"num_cpus": 0, "object_store_memory": 100}, {"object_store_memory": 100}),
    ],
)
def test_a_bundle_is_what_its_worker_asks_for(options, bundle):
    assert bundle_of(ServeWorkerSpec(name="rollout-0-0", actor=ACTOR, ray_options=options)) == bundle


def test_a_class_is_named_by_its_import_path():
    assert import_path(DemoWorker) == "rollbook.adapters.demo.worker:DemoWorker"


def test_a_class_that_others_cannot_import_is_refused():
    with pytest.raises(InvalidSpec, match="put the class at the top of a module"):
        import_path(InATest.Inner)


def test_specs_survive_the_way_to_the_manager():
    specs = [
        ServeWorkerSpec(name="rollout-0-0", actor=ACTOR),
        ServeWorkerSpec(
            name="free",
            pool="judge",
            cell="a",
            rank=1,
            entrypoint=True,
            actor=ACTOR,
            kwargs={"model": "m", "limits": [1, 2.5, None]},
            ports=(PortInfo(port=8000, keep=False), PortInfo(name="rpc", count=2, per="master")),
            urls={"primary": "https://{address}"},
            env={"ADDRESS": "{primary}"},
            placement="PACK",
            ready_path=None,
            max_restarts=3,
            ray_options={"num_gpus": 1, "runtime_env": {"env_vars": {"A": "b"}}},
        ),
        CommandWorkerSpec(name="rollout-1-0", command="serve --port {primary.port}", cwd="/"),
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
        return ServeWorkerSpec(name="rollout-0-0", actor=ACTOR, identity=Says(**says)).identity_of(7)

    assert ServeWorkerSpec(name="rollout-0-0", actor=ACTOR).identity_of(7) is None
    assert identity(header="x-worker") == Identity("rollout-0-0", header="x-worker")
    assert identity(path="/server_info", field="id", value="{name}/{incarnation}") == Identity(
        "rollout-0-0/7", path="/server_info", field="id"
    )


def test_an_identity_goes_the_way_of_specs_and_states():
    spec = ServeWorkerSpec(name="rollout-0-0", actor=ACTOR, identity=Says(header="x-worker"))
    assert decode_specs(encode_specs([spec])) == [spec]
    state = WorkerState(name="rollout-0-0", stage="serving", identity=spec.identity_of(1))
    assert decode_states(encode_states([state])) == {"rollout-0-0": state}
