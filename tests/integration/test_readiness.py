"""The readiness probe and its words, asked of real servers of every kind: a reason for people, never an exception."""

from __future__ import annotations

import asyncio

import pytest
from support.workers import http_worker, never_answer, nobody_listens, tcp_server

from rollbook.adapters.proxies.readiness import HttpReadiness
from rollbook.projections.ports import Identity


@pytest.fixture
async def readiness():
    readiness = HttpReadiness(seconds=0.3)
    yield readiness
    await readiness.close()


async def test_any_other_answer_than_200_is_the_reason():
    readiness = HttpReadiness(seconds=30)
    async with http_worker() as worker:
        worker.healthy = False
        assert await readiness.check(worker.url, "/health") == f"GET {worker.url}/health answered 503"
        assert await readiness.check(worker.url, "/nothing") == f"GET {worker.url}/nothing answered 404"
        await readiness.close()


async def test_who_is_not_there_is_refused(readiness):
    async with nobody_listens() as url:
        assert await readiness.check(url, "/health") == f"GET {url}/health failed: connection refused"


async def test_who_does_not_answer_is_given_up(readiness):
    async with tcp_server(never_answer) as url:
        assert await readiness.check(url, "/health") == f"GET {url}/health gave no answer within 0.3 s"


@pytest.mark.parametrize("url", ["http://no such host", "http://", "nonsense", "grpc://127.0.0.1:1"])
async def test_a_url_that_cannot_be_asked_is_a_reason(readiness, url):
    reason = await readiness.check(url, "/health")
    assert reason is not None
    assert reason.startswith(f"GET {url}/health failed: ")


async def test_something_that_is_not_http_is_a_reason(readiness):
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-OpenSSH_9.9\r\n\r\n")
        await writer.drain()

    async with tcp_server(talk) as url:
        reason = await readiness.check(url, "/health")
    assert reason is not None
    assert reason.startswith(f"GET {url}/health failed: ")


async def test_it_can_be_used_again_after_it_was_closed(readiness):
    async with nobody_listens() as url:
        await readiness.check(url, "/health")
        await readiness.close()
        assert await readiness.check(url, "/health") is not None


@pytest.mark.parametrize(
    "identity",
    [
        Identity("worker", header="x-nothing"),
        Identity("worker", path="/server_info", field="nothing"),
        Identity("worker", path="/health", field="worker"),
    ],
)
async def test_who_does_not_say_who_it_is_is_not_believed(identity):
    readiness = HttpReadiness(seconds=30)
    async with http_worker() as worker:
        reason = await readiness.check(worker.url, "/health", identity)
        assert reason is not None
        assert "does not say who it is" in reason
        await readiness.close()


async def test_a_page_that_says_who_it_is_must_be_there():
    readiness = HttpReadiness(seconds=30)
    async with http_worker() as worker:
        identity = Identity("worker", path="/nothing", field="worker")
        assert await readiness.check(worker.url, "/health", identity) == f"GET {worker.url}/nothing answered 404"
        await readiness.close()
