"""The Ray provider when Ray does not answer as it should: within its deadline, and without stopping the loop."""

import asyncio
import os
import signal
import time

import pytest
from support.process import run_python
from support.ray import SECONDS, demo_spec, is_alive
from support.until import until

from rollbook.adapters.demo.worker import HEADER_INCARNATION
from rollbook.adapters.proxies.readiness import HttpReadiness
from rollbook.adapters.ray.border import NAMESPACE
from rollbook.adapters.ray.provider import RayWorkerProvider
from rollbook.adapters.ray.spec import Says, WorkerState, encode_states
from rollbook.projections.ports import HostAndPort, Identity, Located, ProviderUnavailable, ProviderWorker

pytestmark = [pytest.mark.ray, pytest.mark.integration, pytest.mark.timeout(300)]

W = "rollout-0-0"


async def test_a_manager_that_hangs_costs_the_deadline_and_not_the_loop(launch, fleet):
    """I10: what waits for Ray holds up nothing else."""
    manager = launch()
    provider = await RayWorkerProvider.create(fleet, deadline=2.0)
    await provider.list_workers()
    pid = manager.describe(seconds=SECONDS).pid
    os.kill(pid, signal.SIGSTOP)
    try:
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.05)

        ticking = asyncio.create_task(tick())
        began = time.monotonic()
        answers = await asyncio.gather(*(provider.get_addr(W) for _ in range(50)), return_exceptions=True)
        ticking.cancel()
        assert {type(answer) for answer in answers} == {ProviderUnavailable}
        assert "gave no answer" in str(answers[0]) or "within" in str(answers[0])
        assert time.monotonic() - began < SECONDS
        assert ticks > 5
    finally:
        os.kill(pid, signal.SIGCONT)

    async def look():
        try:
            return await provider.list_workers()
        except ProviderUnavailable:
            return None

    assert await until(look, lambda listed: listed is not None, SECONDS) == []


async def test_who_has_not_said_yet_which_life_it_is_is_not_said_to_be_dead(local_ray, fleet):
    """Right after its manager was restarted: a relisting then would say of all that live that they are down."""
    import ray

    class Restarted:
        def states(self, _):
            return encode_states([WorkerState(name=W, stage="creating", incarnation=3, unsure=True)])

    manager = ray.remote(Restarted).options(name=f"rollbook-{fleet}", namespace=NAMESPACE, num_cpus=0).remote()
    try:
        provider = await RayWorkerProvider.create(fleet, deadline=SECONDS)
        assert await provider.list_workers() == [ProviderWorker(W, 3, alive=None, serving=False)]
        assert await provider.locate([W]) == {W: Located({}, 3)}
    finally:
        ray.kill(manager)


async def test_each_look_up_asks_the_manager_once_and_is_told_what_is_true_then(local_ray, fleet):
    """I6: counted by the one who is asked."""
    import ray

    class Counting:
        def __init__(self):
            self.asked = 0

        def states(self, names):
            self.asked += 1
            addresses = {"primary": HostAndPort("10.0.0.5", self.asked), "rpc": HostAndPort("10.0.0.5", 9000)}
            return encode_states([WorkerState(name=W, stage="serving", incarnation=1, addresses=addresses)])

        def count(self):
            return self.asked

    manager = ray.remote(Counting).options(name=f"rollbook-{fleet}", namespace=NAMESPACE, num_cpus=0).remote()
    try:
        await manager.count.remote()
        provider = await RayWorkerProvider.create(fleet, deadline=SECONDS)
        assert (await provider.get_addr(W)).port == 1
        assert (await provider.get_addr(W)).port == 2
        assert await provider.get_addrs(W) == {
            "primary": HostAndPort("10.0.0.5", 3),
            "rpc": HostAndPort("10.0.0.5", 9000),
        }
        located = await provider.locate([W, "rollout-1-0", W])
        assert located[W].addresses["primary"].port == 4
        await provider.list_workers()
        assert await manager.count.remote() == 5
    finally:
        ray.kill(manager)


async def test_a_manager_that_is_restarted_is_waited_for_within_the_deadline(launch, fleet):
    manager = launch(demo_spec(W))
    (state,) = manager.wait_until_up(seconds=SECONDS)
    provider = await RayWorkerProvider.create(fleet, deadline=SECONDS)
    assert await provider.get_addr(W) == state.addresses["primary"]
    pid = manager.describe(seconds=SECONDS).pid
    os.kill(pid, signal.SIGKILL)
    listed = await provider.list_workers()
    assert [worker.name for worker in listed] == [W]
    assert manager.describe(seconds=SECONDS).pid != pid
    assert is_alive(state.pid)


async def test_a_new_manager_of_the_name_is_found_by_a_provider_that_knew_the_former(launch, fleet, local_ray):
    import ray

    manager = launch(demo_spec(W), detached=True)
    (state,) = manager.wait_until_up(seconds=SECONDS)
    provider = await RayWorkerProvider.create(fleet, deadline=SECONDS)
    await provider.get_addr(W)
    ray.kill(ray.get_actor(manager.name, namespace=manager.namespace))
    with pytest.raises(ProviderUnavailable, match="there is no actor"):
        await provider.get_addr(W)
    launch(detached=True).wait_until_up(seconds=SECONDS)
    assert await provider.get_addr(W) == state.addresses["primary"]


async def test_a_process_that_is_not_connected_joins_by_itself(launch, fleet, local_ray):
    launch(demo_spec(W)).wait_until_up(seconds=SECONDS)
    code = """
        import asyncio, sys
        from rollbook.adapters.ray.provider import RayWorkerProvider

        async def main():
            provider = await RayWorkerProvider.create(sys.argv[2], address=sys.argv[1])
            deadline = asyncio.get_running_loop().time() + 90
            while True:
                try:
                    print(await provider.get_addr("rollout-0-0"))
                except Exception as exc:
                    assert asyncio.get_running_loop().time() < deadline, exc
                    await asyncio.sleep(0.2)
                else:
                    break
            await provider.close()

        asyncio.run(main())
    """
    assert run_python(code, local_ray, fleet).stdout.startswith("127.0.0.2:")


def test_ray_is_told_to_be_patient_before_it_is_imported():
    """What it makes before it joins keeps to what it read at its import, and would end the process after a minute."""
    code = """
        import asyncio, os, sys
        from rollbook.adapters.ray.actors import RayActorsProvider
        from rollbook.adapters.ray.provider import RayWorkerProvider

        class Watching:
            def find_spec(self, name, path=None, target=None):
                if name == "ray":
                    print(os.environ.get("RAY_gcs_rpc_server_reconnect_timeout_s"))

        sys.meta_path.insert(0, Watching())
        if sys.argv[1] == "ray":
            asyncio.run(RayWorkerProvider.create("nobody", address="127.0.0.2:1", deadline=5))
        else:
            asyncio.run(RayActorsProvider.create("engine-{worker}", address="127.0.0.2:1", deadline=5))
    """
    for kind in ("ray", "ray-actors"):
        assert run_python(code, kind).stdout.splitlines() == [str(10 * 365 * 86400)]


def test_what_a_process_starts_after_it_joined_is_not_told_to_be_patient(local_ray, fleet):
    """A Ray that it starts would outlive its head for ever."""
    code = """
        import asyncio, os, sys
        from rollbook.adapters.ray.provider import RayWorkerProvider
        from rollbook.projections.ports import ProviderUnavailable

        async def main():
            provider = await RayWorkerProvider.create("nobody", address=sys.argv[1], namespace=sys.argv[2], deadline=20)
            try:
                await provider.list_workers()
            except ProviderUnavailable as exc:
                print(exc)
            import ray
            print(ray.is_initialized(), os.environ.get("RAY_gcs_rpc_server_reconnect_timeout_s"))
            await provider.close()

        asyncio.run(main())
    """
    assert run_python(code, local_ray, fleet).stdout.splitlines()[-1] == "True None"


def test_a_cluster_that_was_joined_by_who_had_given_up_waiting_is_left_at_the_end(local_ray):
    """Nor is it lost when several ask at once."""
    code = """
        import asyncio, sys
        import ray
        from rollbook.adapters.ray.border import RayThread
        from rollbook.adapters.ray.joining import RayCluster

        async def main():
            cluster = RayCluster(RayThread(), "rollbook", sys.argv[1])
            print(*await asyncio.gather(*map(cluster.join, (0.01, 90, 90)), return_exceptions=True), sep="; ")
            print(ray.is_initialized())
            await cluster.leave(90)
            print(ray.is_initialized())

        asyncio.run(main())
    """
    told = ["the Ray cluster gave no answer within 0.01 s; None; None", "True", "False"]
    assert run_python(code, local_ray).stdout.splitlines() == told


def test_without_a_cluster_the_provider_says_so_and_waits_for_one():
    code = """
        import asyncio
        from rollbook.adapters.ray.provider import RayWorkerProvider
        from rollbook.projections.ports import ProviderUnavailable

        async def main():
            provider = await RayWorkerProvider.create("nobody", address="127.0.0.2:1", deadline=5)
            for _ in range(2):
                try:
                    await provider.list_workers()
                except ProviderUnavailable as exc:
                    print(exc)
            await provider.close()

        asyncio.run(main())
    """
    assert run_python(code).stdout.count("no answer") == 2


async def test_a_worker_that_says_who_it_is_is_located_with_its_identity(launch, fleet):
    """I3: so that a stranger on its port is not taken for it; and each life says its own number."""
    says = Says(header=HEADER_INCARNATION, value="{incarnation}")
    manager = launch(demo_spec(W, identity=says))
    manager.wait_until_up(seconds=SECONDS)
    provider = await RayWorkerProvider.create(fleet, deadline=SECONDS)
    located = (await provider.locate([W]))[W]
    assert located.identity == Identity("1", header=HEADER_INCARNATION)
    readiness = HttpReadiness(seconds=SECONDS)
    url = f"http://{located.addresses['primary']}"
    assert await readiness.check(url, "/health", located.identity) is None
    assert "another worker" in await readiness.check(url, "/health", Identity("2", header=HEADER_INCARNATION))
    await readiness.close()
