"""`verify` against real routers, with workers that are right, dead, foreign, cordoned, silent and away."""

import asyncio
import contextlib
import json
import os
import random

import pytest
from aiohttp import web
from support.routers import running_router
from support.until import until
from support.verifying import OTHER, STRANGER, W, site_at, verdicts

from rollbook.adapters.cli.main import run
from rollbook.adapters.clock import SystemClock
from rollbook.adapters.memory.proxy import MemoryProxy
from rollbook.adapters.trial import CHAT, request_body, session
from rollbook.adapters.verify import doors
from rollbook.events import Registered, WorkerCordoned, WorkerDown, WorkerUp
from rollbook.projections.looking.verification import Verdict
from rollbook.projections.ports import Capabilities, HostAndPort, Identity, Located

pytestmark = [pytest.mark.integration, pytest.mark.router]


class Named:
    """A provider that names every worker's header."""

    def __init__(self, identities):
        self.identities = identities

    async def locate(self, names):
        return {
            name: Located({"primary": HostAndPort("10.0.0.1", 1)}, 1, identity=identity)
            for name, identity in self.identities.items()
            if name in names
        }


@pytest.fixture(scope="module")
def router(tmp_path_factory):
    with running_router(tmp_path_factory.mktemp("router")) as router:
        yield router


@pytest.fixture
async def site(tmp_path, nats_server, nats_client, fleet, router):
    async with site_at(tmp_path, nats_client, fleet, router.url, nats_server.url, router.url) as site:
        yield site


async def test_all_is_right(site):
    for name in (W, OTHER):
        url = await site.worker(name)
        await site.say(WorkerUp(worker=name, incarnation=1))
        await site.register(name, url)
    found = await site.verify()
    assert verdicts(found) == {W: (Verdict.RIGHT, "said so"), OTHER: (Verdict.RIGHT, "said so")}
    assert (found.sent, sum(one.requests for one in found.answered), found.failed) == (8, 8, {})
    assert found.url == f"{site.url}/generate"
    assert {one.incarnation for one in found.answered} == {1}
    # The log does not know of the registrations, so a pass would write them down; it changes nothing at the router.
    assert (found.listed, found.drift, found.differs, found.broken) == (2, (), False, False)


async def test_who_is_listed_and_answered_none_is_named(site):
    for name in (W, OTHER):
        await site.register(name, await site.worker(name))
        await site.say(WorkerUp(worker=name, incarnation=1))
    found = await site.verify(requests=1)
    [answered] = found.answered
    [silent] = {W, OTHER} - {answered.worker}
    assert [note for note in found.notes if note.startswith(f"listed, and answered none of them: {silent} (")]
    assert not found.differs
    assert not [note for note in (await site.verify()).notes if "answered none" in note]


async def test_a_chat_completion_asks_for_the_model_that_is_served(site):
    url = await site.worker(W)
    await site.say(WorkerUp(worker=W, incarnation=1))
    await site.register(W, url)
    found = await site.verify(path="/v1/chat/completions", requests=3)
    assert verdicts(found) == {W: (Verdict.RIGHT, "said so")}
    assert (found.sent, found.failed) == (3, {})


async def test_the_dead_the_cordoned_and_the_foreign_are_named(site):
    for name in (W, OTHER, STRANGER):
        await site.register(name, await site.worker(name))
    await site.say(WorkerUp(worker=W, incarnation=1), WorkerDown(worker=W, incarnation=1, evidence="timeout"))
    await site.say(WorkerUp(worker=OTHER, incarnation=1), WorkerCordoned(worker=OTHER, by="ann", why="slow"))
    found = await site.verify(requests=30)
    assert verdicts(found) == {
        W: (Verdict.DEAD, "said so"),
        OTHER: (Verdict.UNWANTED, "said so"),
        STRANGER: (Verdict.FOREIGN, "said so"),
    }
    assert found.differs
    assert {line.worker for line in found.drift} == {W, OTHER, STRANGER}
    assert "cordoned by ann: slow" in next(one.reason for one in found.answered if one.worker == OTHER)


async def test_an_old_life_that_still_answers_is_dead(site):
    url = await site.worker(W, incarnation=1)
    await site.say(WorkerUp(worker=W, incarnation=1), WorkerUp(worker=W, incarnation=2))
    await site.register(W, url, incarnation=2)
    [one] = (await site.verify()).answered
    assert (one.verdict, one.incarnation, one.reason) == (Verdict.DEAD, 1, "superseded by incarnation 2")


async def test_a_worker_is_known_by_the_header_that_its_provider_names(site):
    for name in (W, OTHER):
        await site.register(name, await site.worker(name))
        await site.say(WorkerUp(worker=name, incarnation=1))
    pids = {"X-Rollbook-Pid": str(os.getpid())}
    provider = Named({W: Identity(value=pids["X-Rollbook-Pid"], header="x-rollbook-pid")})
    found = await site.verify(provider)
    assert verdicts(found) == {W: (Verdict.RIGHT, "said so")}  # both answer with this process's id
    provider = Named({W: Identity(value="another", header="x-rollbook-pid")})
    assert {one.verdict for one in (await site.verify(provider)).answered} == {Verdict.FOREIGN}


async def test_a_worker_that_is_gone_is_a_failed_request(site):
    url = await site.worker(W)
    await site.say(WorkerUp(worker=W, incarnation=1))
    await site.register(W, url)
    await site.workers[0].stop()
    found = await site.verify(requests=4)
    assert sum(found.failed.values()) == 4
    assert found.broken
    assert not found.differs


async def test_without_a_worker_no_request_is_sent(site):
    found = await site.verify()
    assert (found.sent, found.url, found.notes) == (0, None, ("no request was sent: nobody is registered",))
    assert not found.differs
    assert not found.broken


async def test_a_missing_worker_is_drift(site):
    await site.say(WorkerUp(worker=W, incarnation=1))
    await site.say(Registered(proxy="router-a", worker=W, incarnation=1, url="http://10.0.0.1:1"))
    found = await site.verify()
    assert found.differs
    assert [(str(line.change), line.worker) for line in found.drift] == [("register", W)]


async def test_a_router_that_is_away_is_said(site, nats_server):
    site.configure(nats_server.url, "http://127.0.0.1:1")
    found = await site.verify()
    assert found.broken
    assert "connection refused" in found.unreachable
    site.configure(nats_server.url, site.url)


@pytest.mark.parametrize(
    "page", [b"", b"{}", b'{"data": []}', b'{"data": [{"id": 5}]}', b"<html>", b"\xff", b"[" * 9999]
)
async def test_where_no_model_is_named_the_default_is_asked_for(page):
    async def models(_):
        return web.Response(body=page)

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with session({}, None) as asking:
            body = await request_body(asking, f"http://127.0.0.1:{runner.addresses[0][1]}", CHAT, None)
    finally:
        await runner.cleanup()
    assert body["model"] == "default"


# ---------------------------------------------------------------- engines that do not say who they are


class Silent:
    """An engine that answers and counts, and says nothing of itself."""

    def __init__(self, counts=True):
        self.served = 0
        self.counts = counts

    @contextlib.asynccontextmanager
    async def run(self):
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def _metrics(self, _):
        if not self.counts:
            raise web.HTTPNotFound
        return web.Response(
            text='# TYPE vllm:request_success_total counter\nvllm:request_success_total{finished_reason="stop"} '
            f'{self.served - 1}.0\nvllm:request_success_total{{finished_reason="length"}} 1.0\n'
        )

    async def _models(self, _):
        return web.json_response({"data": [{"id": "m"}]})

    async def _chat(self, request):
        assert (await request.json())["model"] == "m"
        self.served += 1
        return web.json_response({"choices": []})


@pytest.mark.parametrize(("counts", "how"), [(True, "counted"), (False, "not known")])
async def test_who_says_nothing_is_counted_or_honestly_unknown(site, nats_server, counts, how):
    engine = Silent(counts)
    async with engine.run() as url:
        # The engine stands behind itself: what matters here is the entry, and where requests go.
        site.configure(nats_server.url, site.url, more=f'data_url = "{url}"\n')
        router = MemoryProxy("router-a", site.fleet, SystemClock(), random.Random(1))
        router.put(url, fleet=site.fleet, worker=W, incarnation=1)
        await site.say(WorkerUp(worker=W, incarnation=1))
        found = await site.verify(router=router, requests=5, path="/v1/chat/completions")
    assert engine.served == 5
    [one] = found.answered
    assert (one.how, one.requests) == (how, 5)
    assert one.verdict is (Verdict.RIGHT if counts else Verdict.UNKNOWN)
    assert bool(found.notes) is not counts
    assert not found.differs


async def test_one_listing_is_judged(site, nats_server):
    """What is called drift and who is asked are of the same moment."""
    site.configure(nats_server.url, site.url)
    router = MemoryProxy("router-a", site.fleet, SystemClock(), random.Random(1))
    router.put("http://10.0.0.1:1", fleet=site.fleet, worker=W, incarnation=1)
    listed, list_now = [], router.list

    async def counted():
        listed.append(await list_now())
        return listed[-1]

    router.list = counted
    found = await site.verify(router=router, requests=0)
    assert (len(listed), found.listed, len(found.drift)) == (1, 1, 1)


async def test_a_proxy_that_lists_nothing_is_believed_and_tried(site, nats_server):
    engine = Silent()
    async with engine.run() as url:
        site.configure(nats_server.url, site.url, more=f'data_url = "{url}"\n')
        blind = Capabilities(list=False, tag=False)
        router = MemoryProxy("router-a", site.fleet, SystemClock(), random.Random(1), capabilities=blind)
        await site.say(WorkerUp(worker=W, incarnation=1))
        await site.say(Registered(proxy="router-a", worker=W, incarnation=1, url=url))
        found = await site.verify(router=router, requests=3, path="/v1/chat/completions")
    assert [(one.worker, one.requests, one.verdict) for one in found.answered] == [(W, 3, Verdict.RIGHT)]
    assert (found.listed, found.differs, found.broken) == (1, False, False)
    assert "it lists nothing" in found.notes[0]


async def test_the_admin_key_goes_to_the_admin_server_only(site, nats_server):
    (site.folder / "key").write_text("secret")
    more = 'api_key = { file = "key" }\n'
    site.configure(nats_server.url, site.url, more=more)
    found = doors(site.config.settings, environ={}, base=site.folder)["router-a"]
    assert found.headers == {"Authorization": "Bearer secret"}
    site.configure(nats_server.url, site.url, more=more + 'data_url = "http://elsewhere:1"\n')
    found = doors(site.config.settings, environ={}, base=site.folder)["router-a"]
    assert (found.headers, found.url) == ({}, "http://elsewhere:1")
    site.configure(nats_server.url, site.url)


# ---------------------------------------------------------------- the command, with and without a controller


def rollbook(capsys, monkeypatch, folder, *arguments):
    monkeypatch.chdir(folder)
    code = run([*arguments], os.environ)
    return code, capsys.readouterr()


async def test_the_command_asks_the_controller_or_does_it_itself(site, nats_server, monkeypatch, capsys):
    from rollbook.adapters.bootstrap import build

    url = await site.worker(W)
    site.configure(nats_server.url, site.url)
    await site.say(WorkerUp(worker=W, incarnation=1))

    async def command(*arguments):
        return await asyncio.to_thread(rollbook, capsys, monkeypatch, site.folder, "verify", *arguments)

    code, told = await command("--json")
    assert (code, "no controller answered" in told.err) == (2, True)
    async with build(site.config.settings, site.folder / ".rollbook", environ={}) as built:
        running = asyncio.create_task(built.run())
        try:
            async with site.proxy() as proxy:
                await until(proxy.list, lambda listing: [entry.url for entry in listing.entries] == [url])
            code, told = await command("--json", "--requests", "4")
            document = json.loads(told.out)
            assert (code, "no controller answered" in told.err) == (0, False), document
            [proxy] = document["proxies"]
            assert [(one["worker"], one["requests"], one["verdict"]) for one in proxy["answered"]] == [(W, 4, "right")]
            code, told = await command("--requests", "4")
            assert code == 0
            assert f"4 of 4 requests to {site.url}/generate were answered" in told.out
            assert "lists 1, as they should be" in told.out
            code, told = await command("--proxy", "router-b")
            assert code == 64
            assert "router-a" in told.err
            code, told = await command("--path", "nonsense")
            assert code == 64
        finally:
            built.controller.stop()
            await running
