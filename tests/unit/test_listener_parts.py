"""What the drop-ins take from a framework: its look-ups as a provider, and its declarations as a configuration."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs
from support.process import no_thread_left
from support.xtuner import Group, Snapshot, pair

from rollbook.adapters.listeners import listener
from rollbook.adapters.listeners.miles import MilesHook
from rollbook.adapters.listeners.provider import FrameworkProvider
from rollbook.adapters.listeners.xtuner import XtunerListener, require_proxy, workers_by_name, xtuner_provider
from rollbook.adapters.locating import address
from rollbook.adapters.publisher import PublisherForked
from rollbook.adapters.settings import ConfigError, ProxySettings, Settings, StaticProvider
from rollbook.events import InvalidFact
from rollbook.projections.policy import PoolPolicy
from rollbook.projections.ports import (
    HostAndPort,
    ProviderUnavailable,
    ProviderWorker,
    UnknownWorker,
    WorkerUnreachable,
)

A = HostAndPort("10.0.0.1", 8000)


@pytest.mark.parametrize(
    "one",
    [A, "10.0.0.1:8000", "http://10.0.0.1:8000/v1", ("10.0.0.1", 8000), SimpleNamespace(host="10.0.0.1", port=8000)],
)
def test_addresses_come_as_frameworks_have_them(one):
    assert address(one) == A


def test_a_url_without_a_port_has_its_schemes():
    assert address("https://w.example") == HostAndPort("w.example", 443)
    assert address("http://[fd00::1]:81/v1") == HostAndPort("fd00::1", 81)


@pytest.mark.parametrize("one", [7, "nonsense", ("h",), object()])
def test_what_is_no_address_is_refused(one):
    with pytest.raises(ValueError, match=r"write host:port|give a URL"):
        address(one)


@pytest.mark.parametrize("one", [("h", 0), ("h", 70_000), ("h", True), SimpleNamespace(host="h", port=None)])
def test_a_port_that_is_none_is_refused_however_it_comes(one):
    """As of an engine that does not listen yet."""
    with pytest.raises(ValueError, match="is no port; write a number from 1 to 65535"):
        address(one)


def test_an_ipv6_host_needs_no_brackets_in_a_pair():
    assert str(address(("fd00::1", 80))) == "[fd00::1]:80"


async def test_every_look_up_asks_the_framework():
    """I6."""
    asked = []
    known = {"w": "10.0.0.1:8000", "dead": None, "both": {"primary": "h:1", "session": "h:2", "rpc": None}}

    def get_addr(name):
        asked.append(name)
        return known[name]

    provider = FrameworkProvider.by_name(get_addr, lambda: known)
    assert await provider.get_addr("w") == A
    known["w"] = "10.0.0.1:8001"
    assert (await provider.get_addr("w")).port == 8001
    assert asked == ["w", "w"]
    located = await provider.locate(["both", "dead", "stranger"])
    assert located["both"].addresses == {"primary": HostAndPort("h", 1), "session": HostAndPort("h", 2)}
    assert located["dead"].addresses == {}
    assert "stranger" not in located
    with pytest.raises(UnknownWorker):
        await provider.get_addr("stranger")
    with pytest.raises(WorkerUnreachable):
        await provider.get_addr("dead")
    assert await provider.list_workers() == [
        ProviderWorker("w", 0, alive=True),
        ProviderWorker("dead", 0, alive=False),
        ProviderWorker("both", 0, alive=True),
    ]


async def test_a_framework_that_hangs_or_fails_is_unknown_and_never_no():
    gate = threading.Event()
    provider = FrameworkProvider.by_name(lambda _: gate.wait(60), list, deadline=0.05)
    for _ in range(2):
        with pytest.raises(ProviderUnavailable, match="no answer from the framework"):
            await provider.locate(["w"])
    gate.set()

    def broken(_):
        raise RuntimeError("the actor is gone")

    with pytest.raises(ProviderUnavailable, match="the actor is gone"):
        await FrameworkProvider.by_name(broken, list).locate(["w"])


@pytest.mark.parametrize("bad", ["nonsense", object(), RuntimeError("its actor hangs")])
async def test_one_worker_of_which_the_framework_tells_nonsense_hides_no_other(bad):  # I10
    def get_addr(name):
        if name == "w":
            return A
        if isinstance(bad, Exception):
            raise bad
        return bad

    providers = [FrameworkProvider.by_name(get_addr, lambda: ["w", "bad"])]
    if not isinstance(bad, Exception):
        providers.append(FrameworkProvider.of_all(lambda: {"w": A, "bad": bad}))
    for provider in providers:
        located = await provider.locate(["w", "bad"])
        assert (located["w"].addresses, located["bad"].addresses) == ({"primary": A}, {})
        assert located["bad"].alive
        assert await provider.list_workers() == [
            ProviderWorker("w", 0, alive=True),
            ProviderWorker("bad", 0, alive=None, serving=False),
        ]
        with pytest.raises(ProviderUnavailable, match="bad"):
            await provider.get_addr("bad")


@pytest.mark.parametrize("exc", [SystemExit(3), KeyboardInterrupt(), StopIteration("none left")])
async def test_what_ends_a_program_or_a_loop_is_a_look_up_that_failed(exc):
    def broken(*_):
        raise exc

    for provider in (
        FrameworkProvider.of_all(broken),
        FrameworkProvider.by_name(broken, list),
        FrameworkProvider.by_name(broken, broken),
    ):
        with pytest.raises(ProviderUnavailable, match=type(exc).__name__):
            await provider.locate(["w"])


async def test_a_process_that_has_no_thread_left_for_a_moment_goes_on_afterwards():
    provider = FrameworkProvider.by_name({"w": "10.0.0.1:8000"}.__getitem__, lambda: ["w"], deadline=5.0)
    with no_thread_left():
        for _ in range(2):
            with pytest.raises(ProviderUnavailable, match="can't start new thread"):
                await provider.locate(["w"])
    assert (await provider.get_addr("w")) == A


async def test_a_framework_that_tells_all_at_once_is_asked_once_for_each_look_up():
    """I6."""
    asked = []

    def everybody():
        asked.append(1)
        return {"w": A, "x": None}

    provider = FrameworkProvider.of_all(everybody)
    located = await provider.locate(["w", "x", "stranger"])
    assert {name: one.addresses for name, one in located.items()} == {"w": {"primary": A}, "x": {}}
    assert [worker.name for worker in await provider.list_workers()] == ["w", "x"]
    assert len(asked) == 2


async def test_xtuners_registry_gives_server_and_session_as_named_addresses():
    groups = [Group((4,), (Snapshot(4, "http://10.0.0.1:8000", "http://10.0.0.1:9000"),)), pair(6)]
    provider = xtuner_provider(lambda: groups)
    located = await provider.locate(["rollout-4-0", "rollout-6-1", "rollout-5-0"])
    assert located["rollout-4-0"].addresses == {"primary": A, "session": HostAndPort("10.0.0.1", 9000)}
    assert located["rollout-6-1"].addresses == {}
    assert "rollout-5-0" not in located
    groups[0] = Group((4,), (Snapshot(4, "http://10.0.0.1:8001"),))
    assert (await provider.get_addr("rollout-4-0")).port == 8001


def test_a_groups_workers_are_named_by_its_first_rank_and_their_place():
    group = Group((9, 8), (Snapshot(9, None), Snapshot(8, None)))
    assert [(name, worker.rank) for name, worker in workers_by_name(group, "judge").items()] == [
        ("judge-8-0", 8),
        ("judge-8-1", 9),
    ]


@pytest.mark.parametrize("call", ["on_worker_group_inactive", "on_worker_group_recovered"])
def test_an_empty_group_says_nothing_and_what_is_none_is_refused_in_words(call):
    with XtunerListener("f", "nats://127.0.0.1:9") as listener:
        for empty in (Group((), ()), Group((3,), ())):
            getattr(listener, call)(empty)
        for garbage in (None, Group((3, 4), (Snapshot(3, None), Snapshot(None, None))), Group(("a", 3), ())):
            with pytest.raises(InvalidFact, match="is no worker group of XTuner's"):
                getattr(listener, call)(garbage)
        assert listener.publisher.stats().accepted == 0


@pytest.mark.parametrize("nodes", [0, -1, None, "many"])
def test_an_engine_without_a_node_is_refused_in_words(nodes):
    with MilesHook("f", "nats://127.0.0.1:9") as hook:
        group = SimpleNamespace(nodes_per_engine=nodes)
        calls = [
            lambda: hook.on_engine_failure(group, 0),
            lambda: hook.on_engines_started(group, [0]),
            lambda: hook.on_pause(group, [0], reason="x", ttl=1.0),
        ]
        for call in calls:
            with pytest.raises(InvalidFact, match="an engine has one or more"):
                call()


def test_i8_in_a_process_that_was_forked_while_another_thread_was_calling_nobody_waits_for_that_thread():
    """The lock was held in the child by nobody, and the first call there hung."""
    with XtunerListener("f", "nats://127.0.0.1:9") as listener:
        with listener._lives._lock:
            child = os.fork()
            if not child:
                refused = False
                try:
                    listener.on_worker_group_inactive(pair(3))
                except PublisherForked:
                    refused = True
                finally:
                    os._exit(0 if refused else 1)
        deadline = time.monotonic() + 30
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                pytest.fail("the child hung")
            time.sleep(0.01)
        assert ended[1] == 0


def test_the_outbox_is_let_go_of_where_no_listener_can_be_made(tmp_path, monkeypatch):
    """This process has no thread left for the follow, and a moment later it has."""

    def make():
        return MilesHook("f", "nats://127.0.0.1:9", outbox=str(tmp_path / "o"))

    def unable(*_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(listener, "Follow", unable)
        with pytest.raises(RuntimeError, match="new thread"):
            make()
    make().close(timeout=0)


class SandboxLoopConfig:
    requires_rollout_proxy = True


class SingleTurnConfig:
    requires_rollout_proxy = False


def settings(*pools):
    return Settings(
        fleet="math-rl",
        provider=StaticProvider(),
        pools={"rollout": PoolPolicy(requires_proxy=False)},
        proxies=(ProxySettings(name="a", kind="sglang", admin_url="http://h:1", pools=pools),) if pools else (),
    )


def manager(*configs):
    tasks = [SimpleNamespace(task_name=f"t{number}", agent_loop_config=config) for number, config in enumerate(configs)]
    return SimpleNamespace(tasks=tasks if len(tasks) != 1 else tasks[0])


def test_an_agent_loop_that_needs_the_proxy_makes_the_pool_require_one_and_the_log_says_which():
    with capture_logs() as logs:
        found = require_proxy(settings("rollout"), manager(SingleTurnConfig(), SandboxLoopConfig()), None)
    assert found.pools["rollout"].requires_proxy
    assert [(line["event"], line["pool"], line["config"]) for line in logs] == [
        ("xtuner.proxy.required", "rollout", "SandboxLoopConfig of task 't1'")
    ]


def test_without_such_a_loop_nothing_changes():
    assert require_proxy(settings(), manager(SingleTurnConfig()), None) == settings()


def test_a_pool_that_no_proxy_serves_is_refused_by_the_name_of_who_asked():
    with pytest.raises(ConfigError, match="SandboxLoopConfig of task 't0' requires a proxy and none serves it"):
        require_proxy(settings(), manager(SandboxLoopConfig()))
    with pytest.raises(ConfigError, match=r"add \[pools.judge\]"):
        require_proxy(settings("rollout"), manager(SandboxLoopConfig()), pool="judge")
