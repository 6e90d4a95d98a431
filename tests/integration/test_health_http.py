"""What real servers answer, or do not, as outcomes."""

import asyncio
import errno
import resource
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from support.workers import http_worker, never_answer, nobody_listens, tcp_server

from rollbook.adapters.health import OK, HealthPolicy, Outcome, Subject
from rollbook.adapters.health.http import HttpProbes
from rollbook.projections.ports import Identity, Located

pytestmark = pytest.mark.integration


@pytest.fixture
async def probes():
    made = HttpProbes()
    yield made
    await made.close()


@asynccontextmanager
async def served(talk):
    """A server that answers every request as `talk` does."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", talk)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def subject(url, *, deep=False, identity=None):
    return Subject("rollout-0-0", 1, "rollout", url, Located({}, 1, identity=identity), deep=deep, due=0.0)


@pytest.fixture
def ask(probes):
    async def ask(url, *, policy=HealthPolicy(), model=None, **rest):  # noqa: B008 - frozen
        async with asyncio.timeout(30):
            return await probes.check(policy, model)(subject(url, **rest))

    return ask


async def test_a_worker_that_is_well_busy_and_gone(ask):
    async with http_worker() as worker:
        assert await ask(worker.url) == OK
        worker.healthy = False
        finding = await ask(worker.url)
        assert finding.outcome is Outcome.BUSY
        assert finding.reason == f"GET {worker.url}/health answered 503"
        worker.healthy = True
        assert await ask(worker.url) == OK
        await worker.stop()
        assert (await ask(worker.url)).outcome is Outcome.REFUSED
        await worker.start()
        assert await ask(worker.url) == OK


async def test_nobody_listens_is_refused(ask):
    async with nobody_listens() as url:
        finding = await ask(url)
    assert finding.outcome is Outcome.REFUSED
    assert finding.reason == f"GET {url}/health failed: connection refused"


@pytest.mark.parametrize("deep", [False, True])
async def test_i3_a_page_that_nobody_has_answered_may_be_the_wrong_one(probes, deep):
    """A pool whose path is misspelt is not shot; a worker that has lost its page is."""
    status = 404

    async def talk(request):
        return web.json_response({"text": "a"}, status=status)

    check = probes.check(HealthPolicy(path="/healht", deep="sglang"), None)
    async with served(talk) as url:
        finding = await check(subject(url, deep=deep))
        assert finding.outcome is Outcome.UNKNOWN
        assert f"health.{'deep' if deep else 'path'} right?" in finding.reason
        status = 500
        assert (await check(subject(url, deep=deep))).outcome is Outcome.UNHEALTHY
        status = 200
        assert await check(subject(url, deep=deep)) == OK
        status = 404
        assert (await check(subject(url, deep=deep))).outcome is Outcome.UNHEALTHY
        assert (await check(subject(url, deep=not deep))).outcome is Outcome.UNKNOWN


async def test_no_http_and_a_broken_connection_are_unhealthy(ask):
    async def hang_up(reader, writer):
        await reader.read(10)

    async def babble(reader, writer):
        await reader.read(10)
        writer.write(b"220 smtp ready\r\n\r\n")
        await writer.drain()

    for talk in (hang_up, babble):
        async with tcp_server(talk) as url:
            assert (await ask(url)).outcome is Outcome.UNHEALTHY


async def test_silence_is_left_to_whoever_bounds_it(probes):
    async with tcp_server(never_answer) as url:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await probes.check(HealthPolicy(), None)(subject(url))


async def test_a_name_that_nobody_resolves_says_nothing_about_the_worker(ask):
    assert (await ask("http://nobody.invalid:1")).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("url", ["http://[::1", "http://h:99999", "ftp://h:1", "http://", "http://\udcff:1"])
async def test_an_address_that_is_none_says_nothing_about_the_worker(ask, url):
    """It is the template's fault, or the provider's: a whole pool was called unhealthy, and restarted for it."""
    finding = await ask(url)
    assert (finding.outcome, finding.reason.startswith("it cannot be asked at")) == (Outcome.UNKNOWN, True)


async def test_a_monitor_without_file_descriptors_shoots_nobody(ask):
    async with http_worker() as worker:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        held = []
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
            with pytest.raises(OSError) as caught:  # noqa: PT011, PT012 - fill the table
                while True:
                    held.append(open("/dev/null"))  # noqa: ASYNC230, PTH123, SIM115 - descriptors are what is wanted
            assert caught.value.errno == errno.EMFILE
            assert (await ask(worker.url)).outcome is Outcome.UNKNOWN
        finally:
            for one in held:
                one.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_stranger_at_the_address_is_not_the_worker(ask):
    async with http_worker("rollout-0-0") as worker:
        mine = Identity("rollout-0-0", header="x-worker")
        other = Identity("rollout-1-0", header="x-worker")
        assert await ask(worker.url, identity=mine) == OK
        finding = await ask(worker.url, identity=other)
        assert finding.outcome is Outcome.UNHEALTHY
        assert "another worker" in finding.reason


async def test_one_token_of_sglang_is_generated(ask):
    async with http_worker() as worker:
        assert await ask(worker.url, deep=True, policy=HealthPolicy(deep="sglang")) == OK
        assert worker.served == 1


async def test_one_token_of_the_first_model_is_generated(ask):
    asked = []

    async def models(_):
        return web.json_response({"object": "list", "data": [{"id": "qwen"}]})

    async def completions(request):
        asked.append(await request.json())
        return web.json_response({"choices": [{"text": "2"}]})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/completions", completions)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        policy = HealthPolicy(deep="openai")
        assert await ask(url, deep=True, policy=policy) == OK
        assert await ask(url, deep=True, policy=policy, model="own") == OK
    finally:
        await runner.cleanup()
    assert [(one["model"], one["max_tokens"]) for one in asked] == [("qwen", 1), ("own", 1)]


@pytest.mark.parametrize("deep", ["sglang", "openai"])
@pytest.mark.parametrize(
    "answer", [b"", b"{}", b'{"error": "the scheduler died"}', b'{"choices": []}', b"<html>", b"\xff"]
)
async def test_an_engine_that_answers_200_with_no_token_is_not_well(ask, deep, answer):
    async def talk(_):
        return web.Response(body=answer)

    async with served(talk) as url:
        finding = await ask(url, deep=True, policy=HealthPolicy(deep=deep), model="qwen")
    assert finding.outcome is Outcome.UNHEALTHY
    assert "answered 200 and generated nothing" in finding.reason


@pytest.mark.parametrize("deep", ["sglang", "openai"])
@pytest.mark.parametrize(("breaks", "outcome"), [(False, Outcome.OK), (True, Outcome.UNHEALTHY)])
async def test_a_token_that_comes_in_pieces_or_breaks_off(ask, deep, breaks, outcome):
    whole = b'{"text": "2", "choices": [{"text": "2"}]}'

    async def talk(request):
        response = web.StreamResponse()
        response.content_length = len(whole)
        await response.prepare(request)
        await response.write(whole[:9])
        if breaks:
            request.transport.close()
        else:
            await asyncio.sleep(0.05)
            await response.write(whole[9:])
        return response

    async with served(talk) as url:
        assert (await ask(url, deep=True, policy=HealthPolicy(deep=deep), model="qwen")).outcome is outcome
