"""What every `WorkerProvider` must do: the one in memory, the static ones, and those on a real Ray."""

import asyncio
import contextlib
import os

import pytest
from support.provider_worlds import (
    KILLED,
    RESTARTED,
    STEADY,
    Engine,
    FileWorld,
    MemoryWorld,
    Odd,
    RayActorsWorld,
    RayWorld,
    StaticWorld,
    Stranger,
)
from support.ray import SECONDS, demo_spec, launched
from support.until import until

from rollbook.adapters.bootstrap import open_provider
from rollbook.adapters.ray.actors import RayActorsProvider, _Call
from rollbook.adapters.ray.border import ActorGone
from rollbook.adapters.ray.ports import PortInfo
from rollbook.adapters.settings import RayActorsProvider as ActorsSettings
from rollbook.adapters.settings import Settings
from rollbook.adapters.static import LARGEST, FileProvider, StaticProvider
from rollbook.projections.ports import (
    HostAndPort,
    ProviderUnavailable,
    ProviderWorker,
    UnknownWorker,
    WorkerUnreachable,
)

NOBODY = "rollout-9-0"


ON_RAY = [pytest.mark.ray, pytest.mark.integration, pytest.mark.timeout(300)]
RAY = pytest.param("ray", marks=ON_RAY, id="ray")
RAY_ACTORS = pytest.param("ray-actors", marks=ON_RAY, id="actors-ray")


@pytest.fixture(scope="module")
def ray_world(local_ray, nats_server):
    specs = [demo_spec(STEADY), demo_spec(RESTARTED, ports=(PortInfo(keep=False),)), demo_spec(KILLED, max_restarts=0)]
    with launched(nats_server, f"provider-{os.getpid()}", *specs) as manager:
        manager.wait_until_up(seconds=SECONDS)
        yield RayWorld(manager, f"provider-{os.getpid()}")


@pytest.fixture(scope="module")
def ray_actors_world(local_ray):
    world = RayActorsWorld()
    yield world
    world.close()


def made(kind, request):
    match kind:
        case "memory":
            return MemoryWorld()
        case "static":
            return StaticWorld()
        case "file":
            return FileWorld(request.getfixturevalue("tmp_path"))
        case "ray-actors":
            return request.getfixturevalue("ray_actors_world")
        case _:
            return request.getfixturevalue("ray_world")


@pytest.fixture
def world(request):
    """Its workers come and go."""
    return made(request.param, request)


@pytest.fixture(params=["memory", "static", "file", RAY_ACTORS, RAY])
def still_world(request):
    """Nothing happens in it during the test."""
    return made(request.param, request)


def lively(*worlds):
    return pytest.mark.parametrize("world", worlds, indirect=True)


async def test_a_known_worker_has_an_address_and_the_life_that_answers_there(still_world):
    provider = still_world.provider
    address = await provider.get_addr(STEADY)
    assert address.host == "127.0.0.2"
    assert address.port > 0
    located = await provider.locate([STEADY])
    assert list(located) == [STEADY]
    assert located[STEADY].addresses["primary"] == address
    assert located[STEADY].alive
    assert located[STEADY].incarnation == int(still_world.counts_lives)
    assert await provider.get_addrs(STEADY) == located[STEADY].addresses


async def test_an_unknown_worker_is_told_from_an_unreachable_one(still_world):
    with pytest.raises(UnknownWorker, match=NOBODY):
        await still_world.provider.get_addr(NOBODY)
    with pytest.raises(UnknownWorker, match=NOBODY):
        await still_world.provider.get_addrs(NOBODY)


async def test_many_are_located_at_once_and_unknown_ones_left_out(still_world):
    assert set(await still_world.provider.locate([STEADY, NOBODY, RESTARTED])) == {STEADY, RESTARTED}
    assert await still_world.provider.locate([NOBODY]) == {}
    assert await still_world.provider.locate([]) == {}


async def test_the_listing_holds_all(still_world):
    listed = {worker.name: worker for worker in await still_world.provider.list_workers()}
    assert set(listed) == {STEADY, RESTARTED, KILLED}
    assert listed[STEADY] == ProviderWorker(STEADY, int(still_world.counts_lives), still_world.alive, serving=True)


@lively("memory", "file", RAY_ACTORS, RAY)
async def test_the_next_life_is_at_its_own_address_at_once(world):
    """I6: nothing is remembered between two look-ups."""
    before = await world.provider.get_addr(RESTARTED)
    await world.restart()
    after = await world.provider.get_addr(RESTARTED)
    assert after != before
    located = (await world.provider.locate([RESTARTED]))[RESTARTED]
    assert (located.addresses["primary"], located.incarnation, located.alive) == (after, 2, True)


@lively("memory", RAY)
async def test_a_dead_worker_is_known_and_has_no_address(world):
    await world.kill()
    with pytest.raises(WorkerUnreachable, match=f"'{KILLED}' \\(incarnation 1\\)"):
        await world.provider.get_addr(KILLED)
    assert not (await world.provider.locate([KILLED]))[KILLED].alive
    (listed,) = [worker for worker in await world.provider.list_workers() if worker.name == KILLED]
    assert listed == ProviderWorker(KILLED, 1, alive=False, serving=False)


async def assert_unavailable(provider):
    for look in (
        provider.get_addr(STEADY),
        provider.get_addrs(STEADY),
        provider.locate([STEADY]),
        provider.list_workers(),
    ):
        with pytest.raises(ProviderUnavailable):
            await look


@lively("memory", "file")
async def test_no_answer_is_unknown_and_never_no(world):
    await world.cut_off()
    await assert_unavailable(world.provider)


@pytest.mark.ray
@pytest.mark.integration
@pytest.mark.timeout(300)
def test_no_manager_is_unknown_and_never_no(local_ray, nats_server, fleet):
    with launched(nats_server, fleet) as manager:
        world = RayWorld(manager, fleet)

        async def look():
            assert await world.provider.list_workers() == []
            await world.cut_off()
            await assert_unavailable(world.provider)

        asyncio.run(look())


async def test_a_static_worker_without_a_primary_address_is_unreachable():
    provider = StaticProvider({STEADY: {"session": HostAndPort("127.0.0.2", 1)}})
    with pytest.raises(WorkerUnreachable, match="has no primary address, only session"):
        await provider.get_addr(STEADY)
    assert await provider.get_addrs(STEADY) == {"session": HostAndPort("127.0.0.2", 1)}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "workers: is missing; write [workers.<worker>] with primary"),
        (b"[workers.rollout-0-0]\nprim", "is not TOML"),
        (b"\xff", "is not UTF-8 text"),
        (b"workers = " + b"[" * 100_000, "is nested too deep"),
        (b"workers = " + b"9" * 5000, "is not TOML: Exceeds the limit (4300 digits)"),
        (b"[workers]\n\0", "is not TOML: Invalid statement"),
        (b"[workers.a]\n[workers.a]\n", "is not TOML: Cannot declare ('workers', 'a') twice"),
        (b'[workers.rollout-0-0]\nprimary = "h"', "workers.rollout-0-0.primary: it has no port; write host:port"),
        (b'[workers.rollout-0-0]\nrpc = "h:1"', "workers.rollout-0-0: has no primary address; add primary"),
        (b'[workers]\nrollout-0-0 = "h:1"', "workers.rollout-0-0: the string"),
        (b'workers = ["h:1"]', "workers: a list where a table is needed"),
        (
            b'[workers.rollout-0-0]\nprimary = "h:1"\nincarnation = true',
            "workers.rollout-0-0.incarnation: true where a whole number above 0 is needed",
        ),
        (b'[worker.rollout-0-0]\nprimary = "h:1"', "worker: unknown key; did you mean 'workers'"),
    ],
)
async def test_a_file_that_is_wrong_says_where_and_that_nothing_is_known(tmp_path, text, told):
    """Not that the workers are gone, even while somebody is writing it; and it is right again as soon as it is."""
    world = FileWorld(tmp_path)
    right = world.file.read_bytes()
    world.file.write_bytes(text)
    await assert_unavailable(world.provider)
    with pytest.raises(ProviderUnavailable) as caught:
        await world.provider.list_workers()
    assert told in str(caught.value)
    assert str(world.file) in str(caught.value)
    world.file.write_bytes(right)
    assert (await world.provider.get_addr(STEADY)).port == 8000


async def test_a_file_that_takes_longer_than_the_deadline_costs_that_and_is_known_once_it_is_understood(tmp_path):
    """As a long one does, or one on a network's file system that hangs. I6: another byte in it is seen at once."""
    world = FileWorld(tmp_path)
    short = world.file.read_bytes()
    more = "".join(f'[workers.many-{cell}-0]\nprimary = "10.0.0.1:{8000 + cell % 1000}"\n' for cell in range(20_000))
    world.file.write_bytes(short + more.encode())
    provider = FileProvider(world.file, deadline=0.05)
    with pytest.raises(ProviderUnavailable, match=r"could not be read within 0.05 s"):
        await provider.list_workers()

    async def look():
        with contextlib.suppress(ProviderUnavailable):
            return await provider.get_addr("many-19999-0")

    assert await until(look, lambda found: found is not None) == HostAndPort("10.0.0.1", 8999)
    written = world.file.stat()
    world.file.write_bytes(world.file.read_bytes().replace(b"10.0.0.1:8999", b"10.0.0.2:8999"))
    os.utime(world.file, ns=(written.st_atime_ns, written.st_mtime_ns))  # as where clocks are coarse
    assert await until(look, lambda found: found is not None) == HostAndPort("10.0.0.2", 8999)


async def test_what_is_no_file_is_said_at_once_and_holds_up_nobody(tmp_path):
    """A pipe without a writer would hang for ever whoever opens it, and with him all later questions."""
    world = FileWorld(tmp_path)
    right = world.file.read_bytes()
    for make in (os.mkfifo, os.mkdir, lambda file: file.symlink_to("/dev/zero")):
        world.file.unlink()
        make(world.file)
        with pytest.raises(ProviderUnavailable, match=r"workers.toml: is no file, but a directory, a pipe or a device"):
            await world.provider.list_workers()
        world.file.rmdir() if world.file.is_dir() else world.file.unlink()
        world.file.write_bytes(right)
        assert (await world.provider.get_addr(STEADY)).port == 8000
    with pytest.raises(ProviderUnavailable, match="can be no file's name"):
        await FileProvider(tmp_path / "a\0b").list_workers()
    with world.file.open("wb") as file:
        file.truncate(LARGEST + 1)
    with pytest.raises(ProviderUnavailable, match=f"has {LARGEST + 1} bytes, more than {LARGEST}"):
        await world.provider.list_workers()


# ---------------------------------------------------------------- actors of a framework

ODD = "rollout-7-0"


@pytest.mark.ray
@pytest.mark.integration
@pytest.mark.timeout(300)
class TestActors:
    @pytest.fixture
    def start(self, ray_actors_world):
        """Start the actor of a worker that is this test's own."""
        started = []

        def start(answer, worker=ODD, **options):
            started.append(worker)
            return ray_actors_world.start(worker, answer, **options)

        yield start
        for worker in started:
            ray_actors_world.end(worker)

    async def test_each_look_up_asks_the_actor_once(self, ray_actors_world, start):
        """I6: counted by the one who is asked."""
        actor = await asyncio.to_thread(start, "http://10.0.0.5:8000/v1")
        provider = ray_actors_world.provider
        for look in (provider.get_addr(ODD), provider.get_addrs(ODD), provider.locate([ODD, ODD]), provider.locate([])):
            await look
        assert await actor.asked.remote() == 3
        await provider.list_workers()
        assert await actor.asked.remote() == 4

    async def test_it_is_opened_as_the_settings_say(self, ray_actors_world, tmp_path):
        chosen = ActorsSettings(actor="engine/{worker}", namespace=ray_actors_world.namespace)
        async with open_provider(Settings(fleet="f", provider=chosen), tmp_path) as provider:
            assert isinstance(provider, RayActorsProvider)
            assert await provider.get_addr(STEADY) == await ray_actors_world.provider.get_addr(STEADY)

    async def test_the_addresses_by_name(self, ray_actors_world, start):
        answer = {"primary": ("10.0.0.5", 8000), "disaggregation_bootstrap": "10.0.0.5:8998", "rpc": None}
        await asyncio.to_thread(start, answer)
        assert await ray_actors_world.provider.get_addrs(ODD) == {
            "primary": HostAndPort("10.0.0.5", 8000),
            "disaggregation_bootstrap": HostAndPort("10.0.0.5", 8998),
        }

    @pytest.mark.parametrize(
        ("answer", "told"),
        [
            ("nonsense", r"what get_addr\(\) of actor 'engine/rollout-7-0' answers is no address: it has no port"),
            ({"primary": "h:1", "incarnation": "two"}, "incarnation 'two' is no whole number above 0"),
        ],
    )
    async def test_an_answer_that_is_none_is_unknown_and_says_why(self, ray_actors_world, start, answer, told):
        await asyncio.to_thread(start, answer)
        with pytest.raises(ProviderUnavailable, match=told):
            await ray_actors_world.provider.get_addr(ODD)
        located = await ray_actors_world.provider.locate([ODD, STEADY])
        assert located[ODD].addresses == {}
        assert located[STEADY].addresses

    async def test_one_that_hangs_is_unknown_and_keeps_nobody_else_from_being_found(self, ray_actors_world, start):
        """I10."""
        actor = await asyncio.to_thread(start, "h:1", max_concurrency=1)
        actor.hang.remote()
        provider = await RayActorsProvider.create("engine/{worker}", namespace=ray_actors_world.namespace, deadline=2.0)
        located = await provider.locate([ODD, STEADY])
        assert located[STEADY].addresses
        assert (located[ODD].addresses, located[ODD].alive) == ({}, True)
        with pytest.raises(ProviderUnavailable, match="gave no answer"):
            await provider.get_addr(ODD)
        listed = {one.name: one.alive for one in await provider.list_workers()}
        assert (listed[ODD], listed[STEADY]) == (None, True)

    async def test_one_that_hangs_is_asked_once_until_it_has_answered(self, ray_actors_world, start, tmp_path):
        """Its queue would grow with every look-up, and every look-up would take the whole deadline for it."""
        actor = await asyncio.to_thread(start, "h:1", max_concurrency=1)
        actor.hang_until.remote(str(tmp_path / "go on"))
        provider = await RayActorsProvider.create("engine/{worker}", namespace=ray_actors_world.namespace, deadline=1.0)
        with pytest.raises(ProviderUnavailable, match=r"gave no answer within 1 s|gave no answer within 0\.9"):
            await provider.get_addr(ODD)
        for _ in range(3):
            with pytest.raises(
                ProviderUnavailable, match=r"'engine/rollout-7-0' gave no answer to get_addr\(\), .*async"
            ):
                await provider.get_addr(ODD)
        (tmp_path / "go on").touch()

        async def look():
            with contextlib.suppress(ProviderUnavailable):
                return await provider.get_addr(ODD)

        assert await until(look, lambda found: found is not None, SECONDS) == HostAndPort("h", 1)
        assert await actor.asked.remote() == 2

    async def test_a_question_to_an_actor_of_a_cluster_that_was_left_is_forgotten(self, ray_actors_world):
        """Its reference is one that Ray does not know any more, and refuses."""
        import ray

        provider = await RayActorsProvider.create("engine/{worker}", namespace=ray_actors_world.namespace)
        place = (ray_actors_world.namespace, f"engine/{STEADY}")
        unknown = ray.ObjectRef(os.urandom(ray.ObjectRef.size()), skip_adding_local_ref=True)
        provider._open[place] = _Call(object(), unknown, 0.0)
        assert (await provider.get_addr(STEADY)).port == 8000
        assert provider._open == {}

    async def test_whatever_it_answers_or_raises_is_its_own_business(self, ray_actors_world, start):
        """Also an error of ours: it is not the actor itself that is gone, and the others are found."""
        actor = await asyncio.to_thread(start, None)
        provider = ray_actors_world.provider
        for answer, told in (
            (5, "the number 5 is no address"),
            (b"h:1", "a bytes is no address"),
            ("x" * 10_000_000, "it has no port"),
            ({"primary": [1, 2, 3]}, "a list is no address"),
            (
                {f"kind{number}": "h:1" for number in range(2000)},
                "it has 2000 entries; 1024 named addresses are allowed",
            ),
            (HostAndPort("h", 70000), "'70000' is no port"),
            (("h", 0), "'0' is no port"),
            ("h\0:1", "write host:port"),
            ({"primary": "h:1", "incarnation": 2**60}, f"incarnation '{2**60}' is no whole number above 0"),
            (Odd(), "answers is no address: not now"),
            (Stranger(os.getpid()), r"what get_addr\(\) of actor 'engine/rollout-7-0' answers cannot be read here"),
            (RuntimeError, r"get_addr\(\) of actor 'engine/rollout-7-0' failed: RuntimeError: it says so"),
            (WorkerUnreachable, "failed: WorkerUnreachable: it says so"),
            (ActorGone, "failed: ActorGone: it says so"),
        ):
            await actor.say.remote(answer)
            with pytest.raises(ProviderUnavailable, match=told) as caught:
                await provider.get_addr(ODD)
            assert len(str(caught.value)) < 1000
            located = await provider.locate([ODD, STEADY])
            assert (located[ODD].addresses, located[ODD].alive) == ({}, True)
            assert located[STEADY].addresses
        assert await actor.asked.remote() == 28

    async def test_a_method_that_it_has_not_is_named(self, ray_actors_world):
        provider = await RayActorsProvider.create("engine/{worker}", method="address", deadline=SECONDS)
        with pytest.raises(ProviderUnavailable, match=r"has no method 'address'; provider\.method"):
            await provider.get_addr(STEADY)

    async def test_namespaces_are_looked_through_and_two_of_one_name_are_not_chosen_from(self, ray_actors_world, start):
        provider = await RayActorsProvider.create("engine/{worker}", deadline=SECONDS)
        assert (await provider.get_addr(STEADY)).port == 8000
        await asyncio.to_thread(start, "h:1", namespace="one")
        await asyncio.to_thread(start, "h:1", worker="rollout-8-0", namespace="one")
        with pytest.raises(UnknownWorker):
            await ray_actors_world.provider.get_addr(ODD)
        assert (await provider.get_addr("rollout-8-0")).port == 1
        import ray

        other = await asyncio.to_thread(
            lambda: ray.remote(Engine).options(name=f"engine/{ODD}", namespace="two", num_cpus=0).remote("h:2")
        )
        await other.asked.remote()
        with pytest.raises(ProviderUnavailable, match=r"in the namespaces 'one', 'two'; choose one in provider"):
            await provider.get_addr(ODD)
        ray.kill(other)
