"""Servers that are not the router one hoped for: each becomes an error that says what came."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from support.workers import never_answer, nobody_listens, tcp_server

from rollbook.adapters.proxies import http
from rollbook.adapters.proxies.kinds import ProxyConfig
from rollbook.adapters.proxies.sglang import SglangProxy
from rollbook.adapters.proxies.workers_api import MOST_ENTRIES
from rollbook.events.facts.base import MAX_INTEGER
from rollbook.projections.ports import Done, Entry, Failed, Pending, ProxyUnavailable, Target

TARGET = Target(worker="rollout-3-0", incarnation=8, url="http://10.0.0.1:8000")
ENTRY = Entry(url=TARGET.url, handle="6f3f4a35-8e0a-4d75-8a43-0d0a8f1b8f8e")


def sglang(url: str, key: str | None = None) -> SglangProxy:
    return SglangProxy(ProxyConfig(name="router-a", admin_url=url, fleet="math-rl", api_key=key))


@asynccontextmanager
async def answering(answer, *, key: str | None = None, path: str = ""):
    """A `SglangProxy` in front of a server that gives every request to `answer`."""
    app = web.Application()
    app.router.add_route("*", "/{anything:.*}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        proxy = sglang(f"http://127.0.0.1:{runner.addresses[0][1]}{path}", key)
        try:
            yield proxy
        finally:
            await proxy.close()
    finally:
        await runner.cleanup()


def saying(status: int, body: str = "", content_type: str = "application/json"):
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status, text=body, content_type=content_type)

    return answer


def calls(proxy):
    return [
        proxy.list(),
        proxy.add(TARGET),
        proxy.remove(ENTRY),
        proxy.outcome(Pending(ENTRY.handle)),
    ]


@pytest.mark.parametrize(
    ("status", "body", "content_type", "hint"),
    [
        (200, "<html>welcome</html>", "text/html", "answered 200 with text/html: is admin_url right?"),
        (202, "<html>welcome</html>", "text/html", "answered 202 with text/html: is admin_url right?"),
        (404, "<html>no</html>", "text/html", "answered 404 with text/html: this is not the API of an sglang-router"),
        (404, "", "text/plain", "answered 404 without a body: this is not the API of an sglang-router"),
        (502, "<html>bad gateway</html>", "text/html", "answered 502 with text/html: is admin_url right?"),
        (422, "Failed to deserialize", "text/plain", "answered 422 with text/plain: is admin_url right?"),
        (200, "[]", "application/json", "answered 200 with application/json: is admin_url right?"),
        (200, '"workers"', "application/json", "answered 200 with application/json"),
        (200, '{"workers": 1}', "application/json", "answered 200 with application/json"),
        (403, "", "text/plain", "answered 403 without a body: it asks for a key; set api_key"),
    ],
)
async def test_what_is_no_answer_of_the_api_says_what_came(status, body, content_type, hint):
    async with answering(saying(status, body, content_type)) as proxy:
        with pytest.raises(ProxyUnavailable) as caught:
            await proxy.list()
    assert hint in str(caught.value)
    assert str(caught.value).startswith("router-a: GET http://127.0.0.1:")


@pytest.mark.parametrize("status", [200, 202, 301, 401, 404, 405, 500, 503])
async def test_a_web_page_is_never_taken_for_an_answer(status):
    async with answering(saying(status, "<html>hello</html>", "text/html")) as proxy:
        for call in calls(proxy):
            with pytest.raises(ProxyUnavailable, match="text/html"):
                await call


async def test_a_refusal_in_the_routers_words_is_its_answer():
    refusal = json.dumps({"error": "Job queue full: 1000 jobs pending", "code": "INTERNAL_SERVER_ERROR"})
    async with answering(saying(500, refusal)) as proxy:
        for call in (proxy.add(TARGET), proxy.remove(ENTRY), proxy.outcome(Pending(ENTRY.handle))):
            assert await call == Failed("Job queue full: 1000 jobs pending")
        with pytest.raises(ProxyUnavailable, match="answered 500"):
            await proxy.list()


@pytest.mark.parametrize(
    ("state", "answer"),
    [
        ({"worker_type": "regular"}, Done()),
        ({"worker_type": "regular", "job_status": {"job_type": "RemoveWorker", "status": "failed"}}, Done()),
        ({"worker_type": "unknown", "job_status": {"job_type": "RemoveWorker", "status": "failed"}}, None),
        ({"worker_type": "unknown", "job_status": {"job_type": "AddWorker", "status": "pending"}}, None),
        ({"worker_type": "regular", "job_status": {"job_type": "AddWorker", "status": "processing"}}, None),
        (
            {"worker_type": "regular", "job_status": {"job_type": "AddWorker", "status": "failed", "message": "no"}},
            Failed("no"),
        ),
        (
            {"worker_type": "unknown", "job_status": {"job_type": "AddWorker", "status": "failed"}},
            Failed("the router's job failed without a reason"),
        ),
    ],
)
async def test_the_outcome_of_an_add_is_told_from_that_of_a_removal(state, answer):
    async with answering(saying(200, json.dumps(state))) as proxy:
        pending = Pending(ENTRY.handle)
        assert await proxy.outcome(pending) == (answer or pending)


async def test_what_the_router_does_not_know_is_gone_to_a_removal_and_pending_to_an_add():
    """The end of a removal wipes the state of the add that follows it; unknown is never no."""
    unknown = json.dumps({"error": f"Worker {ENTRY.handle} not found", "code": "WORKER_NOT_FOUND"})
    async with answering(saying(404, unknown)) as proxy:
        assert await proxy.remove(ENTRY) == Done()
        assert await proxy.outcome(Pending(ENTRY.handle)) == Pending(ENTRY.handle)


async def test_a_key_does_not_follow_a_redirect():
    seen = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.path)
        raise web.HTTPFound("/elsewhere")

    async with answering(answer, key="hunter2") as proxy:
        for call in calls(proxy):
            with pytest.raises(ProxyUnavailable, match="it redirects; admin_url must be"):
                await call
    assert "/elsewhere" not in seen


async def test_the_admin_url_may_have_a_path_and_the_key_is_a_bearer_token():
    seen = {}

    async def answer(request: web.Request) -> web.Response:
        seen.setdefault("path", request.path)
        seen["key"] = request.headers.get("Authorization")
        return web.json_response({"workers": []})

    async with answering(answer, key="hunter2", path="/routers/a/") as proxy:
        assert (await proxy.list()).entries == ()
    assert seen == {"path": "/routers/a/workers", "key": "Bearer hunter2"}


async def test_an_unreadable_entry_hides_no_other(capsys):
    """I9: bad input stops nothing."""
    good = {
        "id": "1",
        "url": "http://10.0.0.1:8000/",
        "is_healthy": True,
        "metadata": {"rollbook.fleet": "math-rl", "rollbook.worker": "rollout-3-0", "rollbook.incarnation": "8"},
        "something_new": {},
    }
    odd = [
        {"id": "2", "url": "10.0.0.2:8000"},
        {"id": "3", "url": "http://10.0.0.3", "is_healthy": "perhaps", "metadata": ["?"]},
        {
            "id": "4",
            "url": "http://10.0.0.4",
            "metadata": {"rollbook.fleet": "a b", "rollbook.worker": 7, "rollbook.incarnation": "08"},
        },
        {"id": "5", "url": "http://10.0.0.5", "metadata": {"rollbook.incarnation": "9" * 400}},
    ]
    unreadable = [None, 7, [], {}, {"id": 1, "url": "http://10.0.0.6"}, {"id": "7"}]
    async with answering(saying(200, json.dumps({"workers": [*unreadable, good, *odd]}))) as proxy:
        for _ in range(3):
            assert (await proxy.list()).entries == (
                Entry(
                    url="http://10.0.0.1:8000",
                    handle="1",
                    fleet="math-rl",
                    worker="rollout-3-0",
                    incarnation=8,
                    healthy=True,
                ),
                Entry(url="10.0.0.2:8000", handle="2"),
                Entry(url="http://10.0.0.3", handle="3"),
                Entry(url="http://10.0.0.4", handle="4"),
                Entry(url="http://10.0.0.5", handle="5"),
            )
    assert capsys.readouterr().out.count("proxy.listing.unreadable_entries") == 1


async def test_a_listing_of_more_entries_than_can_be_read_in_time_is_none():
    """I10: 1.5 million short entries fit into 32 MiB; reading them took the controller its lease."""
    body = f'{{"workers":[{",".join(["{}"] * (MOST_ENTRIES + 1))}]}}'
    async with answering(saying(200, body)) as proxy:
        with pytest.raises(ProxyUnavailable, match="it lists 50001 workers, 50000 can be read"):
            await proxy.list()


async def test_nor_is_such_a_listing_of_urls_alone():
    """I10: as routers before 0.2 list, and those of miles."""

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/workers":
            return web.Response(status=404)
        return web.json_response({"urls": [""] * (MOST_ENTRIES + 1)})

    async with answering(answer) as proxy:
        with pytest.raises(ProxyUnavailable, match="it lists 50001 workers, 50000 can be read"):
            await proxy.list()


async def test_the_last_incarnation_that_there_can_be_is_recognised():
    """I11: whoever numbers lives by the clock's microseconds has 16 digits."""
    labels = {
        "rollbook.fleet": "math-rl",
        "rollbook.worker": "rollout-3-0",
        "rollbook.incarnation": str(MAX_INTEGER),
    }
    body = json.dumps({"workers": [{"id": "1", "url": "http://10.0.0.1:8000", "metadata": labels}]})
    async with answering(saying(200, body)) as proxy:
        (entry,) = (await proxy.list()).entries
    assert entry.incarnation == MAX_INTEGER


async def test_a_body_without_end_is_cut_off():
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(2 * http.MOST_BYTES >> 20):
            await response.write(b" " * (1 << 20))
        return response

    async with answering(answer) as proxy:
        with pytest.raises(ProxyUnavailable, match="answered more than 32 MiB"):
            await proxy.list()


async def test_a_server_that_never_answers_is_bounded_by_the_caller():
    """Deadlines are the caller's: the call ends when it says, and not as an answer."""

    async with tcp_server(never_answer) as url:
        proxy = sglang(url)
        try:
            for call in calls(proxy):
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.2):
                        await call
        finally:
            await proxy.close()


async def test_a_server_that_hangs_up_or_is_not_there_is_unavailable():
    async def hang_up(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readline()

    async with tcp_server(hang_up) as abrupt, nobody_listens() as nowhere:
        for url, words in ((abrupt, "failed: "), (nowhere, "failed: connection refused$")):
            proxy = sglang(url)
            for call in calls(proxy):
                with pytest.raises(ProxyUnavailable, match=words):
                    await call
            await proxy.close()


async def test_a_closed_proxy_says_so():
    proxy = sglang("http://127.0.0.1:1")
    await proxy.close()
    await proxy.close()
    with pytest.raises(ProxyUnavailable, match="called after it was closed"):
        await proxy.list()
