"""A real HAProxy's habits, each of which a reconciler must live with (docs/proxies/haproxy.md)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import aiohttp
import pytest
from support.proxies import entries, generate, target
from support.routers import Haproxy, need_haproxy, running
from support.until import until
from support.workers import http_worker, http_workers, nobody_listens, tcp_server

from rollbook.adapters.proxies.haproxy import HaproxyOptions, HaproxyProxy
from rollbook.adapters.proxies.haproxy_socket import RuntimeSocket
from rollbook.adapters.proxies.kinds import ProxyConfig
from rollbook.events import RollbookError
from rollbook.projections.ports import Done, Entry, Failed, ProxyUnavailable, Unsupported

pytestmark = pytest.mark.router

FLEET = "math-rl"
NAME = f"rollout-3-0.8.{FLEET}"


@pytest.fixture(scope="module")
def router(tmp_path_factory):
    need_haproxy()
    with running(Haproxy(tmp_path_factory.mktemp("haproxy"))) as router:
        yield router


@asynccontextmanager
async def proxy_of(address: str, backend: str = "workers", **options):
    made_from = HaproxyOptions(backend=backend, **options)
    proxy = HaproxyProxy(ProxyConfig(name="edge", admin_url=address, fleet=FLEET, options=made_from))
    try:
        yield proxy
    finally:
        await proxy.close()


@pytest.fixture
async def proxy(router):
    async with proxy_of(router.admin_url) as proxy:
        for entry in await entries(proxy):
            assert await proxy.remove(entry) == Done()
        yield proxy


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as session:
        yield session


async def say(router, command: str) -> str:
    """A command that is not the adapter's."""
    return await RuntimeSocket("by-hand", router.admin_url).ask(command)


# ---------------------------------------------------------------- half-done adds


@pytest.mark.parametrize("further", [(), ("enable health",)])
async def test_an_add_that_was_cut_short_is_listed_out_of_rotation_and_can_be_removed(proxy, router, session, further):
    """I1: what was added and not switched on gets no request, and is known for what it is."""
    async with http_worker() as worker:
        address = worker.url.removeprefix("http://")
        assert await say(router, f"add server workers/{NAME} {address} check inter 500ms") == "New server registered."
        for switch in further:
            assert await say(router, f"{switch} workers/{NAME}") == ""
        (entry,) = await entries(proxy)
        assert (entry.url, entry.fleet, entry.worker, entry.incarnation) == (worker.url, FLEET, "rollout-3-0", 8)
        assert not entry.in_rotation
        assert await generate(session, router) == 503
        assert isinstance(await proxy.add(target(worker.url)), Failed)
        assert await proxy.remove(entry) == Done()
        assert await proxy.add(target(worker.url)) == Done()
        assert await generate(session, router) == 200
        assert [entry.in_rotation for entry in await entries(proxy)] == [True]


async def test_a_stopped_haproxy_is_bounded_by_the_caller_and_does_later_what_it_was_told(proxy, router):
    """I2, I3, I10: a ghost of an add is out of rotation; one of a removal names a life, and takes no other."""
    async with http_worker() as worker:
        assert await proxy.add(target(worker.url, 7)) == Done()
        (old,) = await entries(proxy)
        with router.stopped():
            for call in (proxy.list(), proxy.add(target(worker.url, 8)), proxy.remove(old)):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.3):
                        await call
        listed = await until(lambda: entries(proxy), lambda listed: not any(entry.in_rotation for entry in listed))
        assert {entry.incarnation for entry in listed} <= {7, 8}
        for entry in await entries(proxy):
            assert await proxy.remove(entry) == Done()
        assert await proxy.add(target(worker.url, 9)) == Done()
        assert await proxy.remove(old) == Done()
        assert [entry.incarnation for entry in await entries(proxy)] == [9]


# ---------------------------------------------------------------- requests that are running


async def test_a_drained_server_finishes_what_it_has_and_gets_nothing_new(proxy, router, session):
    async with http_worker() as worker:
        worker.gate = asyncio.Event()
        assert await proxy.add(target(worker.url)) == Done()
        requests = [asyncio.create_task(generate(session, router)) for _ in range(3)]
        await worker.reached(3)
        (entry,) = await entries(proxy)
        assert await proxy.drain(entry) == Done()
        (draining,) = await entries(proxy)
        assert not draining.in_rotation
        assert draining.running is not None
        assert draining.running >= 3
        assert await generate(session, router) == 503
        worker.gate.set()
        assert await asyncio.gather(*requests) == [200] * 3
        # A health check is a connection in use, too.
        await until(lambda: entries(proxy), lambda listed: [entry.running for entry in listed] == [0])
        assert await proxy.remove(entry) == Done()
        assert await entries(proxy) == ()


async def test_a_server_with_connections_cannot_be_deleted_and_a_removal_ends_them(proxy, router, session):
    async with http_worker() as worker:
        worker.gate = asyncio.Event()
        assert await proxy.add(target(worker.url)) == Done()
        requests = [asyncio.create_task(generate(session, router)) for _ in range(20)]
        await worker.reached(20)
        assert await say(router, f"set server workers/{NAME} state maint") == ""
        said = await say(router, f"del server workers/{NAME}")
        assert said == "Server still has connections attached to it, cannot remove it."
        (entry,) = await entries(proxy)
        answer = await until(lambda: proxy.remove(entry), lambda answer: answer == Done() or not answer.retryable)
        assert answer == Done()
        assert await entries(proxy) == ()
        assert set(await asyncio.gather(*requests)) == {502}
        worker.gate.set()


# ---------------------------------------------------------------- workers that come and go


async def test_a_worker_that_returns_is_used_at_once_after_remove_and_add(proxy, router, session):
    """A new server is up until its checks say otherwise; the old one would stay down until the next check."""
    async with http_worker() as worker:
        assert await proxy.add(target(worker.url, 8)) == Done()
        assert await generate(session, router) == 200
        await worker.stop()
        (entry,) = await until(lambda: entries(proxy), lambda listed: [entry.healthy for entry in listed] == [False])
        assert entry.in_rotation
        await worker.start()
        assert await proxy.remove(entry) == Done()
        assert await proxy.add(target(worker.url, 9)) == Done()
        assert await generate(session, router) == 200
        assert [entry.incarnation for entry in await entries(proxy)] == [9]


async def test_two_lives_on_one_url_are_two_servers(proxy):
    """I3: a removal names a life, not an address."""
    async with http_worker() as worker:
        for incarnation in (8, 9):
            assert await proxy.add(target(worker.url, incarnation)) == Done()
        old, new = sorted(await entries(proxy), key=lambda entry: entry.incarnation)
        assert old.url == new.url == worker.url
        assert await proxy.remove(old) == Done()
        assert [entry.handle for entry in await entries(proxy)] == [new.handle]


async def test_a_tcp_socket_does_as_well(router, proxy):
    async with proxy_of(router.tcp_url) as over_tcp, http_workers(2) as workers:
        listed = [await over_tcp.add(target(worker.url, number + 1)) for number, worker in enumerate(workers)]
        assert listed == [Done(), Done()]
        assert await entries(over_tcp) == await entries(proxy)
        version = (await over_tcp.list()).version
        assert version is not None
        assert version[0].isdigit()


async def test_an_ipv6_worker_and_one_with_tls_are_listed_as_they_were_added(router, proxy):
    async with proxy_of(router.admin_url, server="ssl verify none") as over_tls:
        for one, url in ((proxy, "http://[::1]:8000"), (over_tls, "https://10.0.0.1"), (proxy, "http://10.0.0.1:80")):
            spelled = one.canonical_url(url)
            assert await one.add(target(spelled)) == Done()
            (entry,) = await entries(one)
            assert entry.url == spelled
            assert await one.remove(entry) == Done()


# ---------------------------------------------------------------- what it does not do


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://worker-1:8000", "does not resolve the name"),
        ("http://127.1:8000", "does not resolve the name"),
        ("http://10.0.0.1:8000/v1", "has no path"),
        ("https://10.0.0.1:8000", "write `ssl` in options.server"),
        ("grpc://10.0.0.1:8000", "grpc:// workers"),
        ("10.0.0.1:8000", "must begin with"),
    ],
)
async def test_a_url_that_is_not_an_address_and_a_port_is_refused(url, why):
    async with proxy_of("unix:///nowhere") as proxy:
        with pytest.raises(ValueError, match=why):
            proxy.canonical_url(url)


async def test_a_socket_without_the_right_to_change_anything_says_so_at_once(router):
    async with proxy_of(router.operator_url) as proxy:
        with pytest.raises(
            ProxyUnavailable, match="is of level 'operator'; give its `stats socket` line `level admin`"
        ):
            await proxy.list()
        with pytest.raises(ProxyUnavailable, match="refuses it; give its"):
            await proxy.add(target("http://127.0.0.1:1"))


async def test_a_backend_that_there_is_not_is_named(router):
    async with proxy_of(router.admin_url, backend="worker") as proxy:
        with pytest.raises(ProxyUnavailable, match=r"HAProxy has no backend 'worker'; options.backend is its name"):
            await proxy.list()
        assert await proxy.add(target("http://127.0.0.1:1")) == Failed("No such backend.")


async def test_a_backend_that_cannot_take_servers_is_unsupported(router):
    async with proxy_of(router.admin_url, backend="fixed") as fixed:
        answer = await fixed.add(target("http://127.0.0.1:1"))
        assert isinstance(answer, Unsupported)
        assert "must use a dynamic load balancing" in answer.reason
        assert await entries(fixed) == ()
    async with proxy_of(router.admin_url, backend="hashed") as hashed:
        assert await hashed.add(target("http://127.0.0.1:1")) == Done()
        for entry in await entries(hashed):
            assert await hashed.remove(entry) == Done()


async def test_servers_of_the_file_are_nobodys_and_leave_unless_something_points_at_them(router):
    """I11: only `exclusive` removes them, and only until the next restart."""
    async with proxy_of(router.admin_url, backend="filed") as proxy:
        by_hand, pinned = await entries(proxy)
        assert (by_hand.handle, pinned.handle) == ("by-hand", "pinned")
        assert {entry.fleet for entry in (by_hand, pinned)} == {""}
        assert await proxy.remove(by_hand) == Done()
        answer = await proxy.remove(pinned)
        assert isinstance(answer, Unsupported)
        assert "other configuration elements pointing to it" in answer.reason
        assert [entry.handle for entry in await entries(proxy)] == ["pinned"]


async def test_words_that_it_does_not_know_fail_in_its_own(router):
    async with proxy_of(router.admin_url, server="czech") as proxy:
        answer = await proxy.add(target("http://127.0.0.1:1"))
        assert isinstance(answer, Failed)
        assert "czech" in answer.reason
        assert await proxy.remove(Entry(url="http://127.0.0.1:1", handle="a;b")) == Failed(
            "'a;b' cannot be the name of a server", retryable=False
        )


# ---------------------------------------------------------------- what is no HAProxy


async def test_whatever_else_listens_is_not_taken_for_it(tmp_path):
    async def hang_up(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readline()

    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.0 400 Bad request\r\nContent-Type: text/html\r\n\r\n<html></html>\n")
        await writer.drain()

    async with tcp_server(hang_up) as abrupt, tcp_server(page) as web, nobody_listens() as nowhere:
        for url, words in (
            (abrupt, "was hung up on without an answer"),
            (web, "this is not HAProxy's Runtime API"),
            (nowhere, "'show info' at tcp://127.0.0.1:[0-9]+ failed: connection refused"),
        ):
            async with proxy_of(url.replace("http", "tcp")) as proxy:
                with pytest.raises(ProxyUnavailable, match=words):
                    await proxy.list()
    async with proxy_of(f"unix://{tmp_path}/gone.sock") as proxy:
        with pytest.raises(ProxyUnavailable, match="failed: no such file or directory"):
            await proxy.list()
    with pytest.raises(ProxyUnavailable, match="called after it was closed"):
        await proxy.list()


@pytest.mark.parametrize("cut", [0, 1, 60])
async def test_i4_a_table_that_ends_in_the_middle_is_no_listing(proxy, router, cut):
    """Whoever is missing from it would be added anew. It may end between two rows."""
    for port in (1, 2, 3):
        await proxy.add(target(f"http://127.0.0.1:{port}", incarnation=port))

    async def dying(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readline()
        said = (await say(router, asked.decode().rstrip("\n"))).encode() + b"\n\n"
        if asked.startswith(b"show servers state"):
            said = said[: said.rindex(b"\n", 0, -2) + 1] if cut == 0 else said[:-cut]
        writer.write(said)
        await writer.drain()

    async with tcp_server(dying) as url, proxy_of(url.replace("http", "tcp")) as cut_short:
        with pytest.raises(ProxyUnavailable, match="was hung up on in the middle"):
            await cut_short.list()
    assert len((await proxy.list()).entries) == 3


@pytest.mark.parametrize(
    ("version", "usable"), [("2.4.31", False), ("2.5.0", False), ("1.8.0", False), ("2.6.0", True), ("3.2.1", True)]
)
async def test_a_version_that_adds_no_servers_is_told_apart(version, usable):
    """I1: it would be a different refusal for each worker."""

    async def haproxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readline()
        said = f"Name: HAProxy\nVersion: {version}" if asked == b"show info\n" else "operator"
        writer.write(f"{said}\n\n".encode())
        await writer.drain()

    async with tcp_server(haproxy) as url, proxy_of(url.replace("http", "tcp")) as proxy:
        with pytest.raises(ProxyUnavailable, match="level 'operator'" if usable else f"HAProxy {version} adds no"):
            await proxy.list()


@pytest.mark.parametrize("address", ["unix://run/haproxy.sock", "unix:///", "tcp://host", "tcp://h:1/x", "http://h:1"])
def test_an_address_that_is_none_is_refused_when_it_is_made(address):
    with pytest.raises(RollbookError, match="is not where a Runtime API listens"):
        RuntimeSocket("edge", address)


@pytest.mark.parametrize(
    "options", [{"backend": "a b"}, {"backend": "a;b"}, {"backend": ""}, {"backend": "a", "server": "check; quit"}]
)
def test_options_that_would_be_another_command_are_refused(options):
    with pytest.raises(ValueError, match=r"cannot be the name of a backend|only words as on"):
        HaproxyOptions(**options)


def test_what_it_cannot_be_made_from_is_said():
    with pytest.raises(RollbookError, match=r"write \[proxies.options\]"):
        HaproxyProxy(ProxyConfig(name="edge", admin_url="unix:///a", fleet=FLEET))
    with pytest.raises(RollbookError, match="has no key; leave api_key out") as caught:
        HaproxyProxy(
            ProxyConfig(
                name="edge",
                admin_url="unix:///a",
                fleet=FLEET,
                api_key="hunter2",
                options=HaproxyOptions(backend="workers"),
            )
        )
    assert "hunter2" not in str(caught.value)


async def test_a_worker_that_dies_is_out_before_anybody_says_so(proxy, router, session):
    """Its own checks do that; Rollbook removes it when it hears of it."""
    async with http_workers(2) as (stays, dies):
        for incarnation, worker in enumerate((stays, dies), 1):
            assert await proxy.add(target(worker.url, incarnation)) == Done()
        await dies.stop()
        await until(lambda: entries(proxy), lambda listed: False in {entry.healthy for entry in listed})
        assert [await generate(session, router) for _ in range(10)] == [200] * 10
        assert stays.served == 10
