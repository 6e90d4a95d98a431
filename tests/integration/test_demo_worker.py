"""The demo's worker over real HTTP: it answers what routers ask, and every answer says which life it is."""

import errno
import os

import aiohttp
import pytest

from rollbook.adapters.demo.worker import DemoWorker, serve

W = "rollout-0-0"
SIGNATURE = {
    "X-Rollbook-Worker": W,
    "X-Rollbook-Incarnation": "7",
    "X-Rollbook-Pid": str(os.getpid()),
}


@pytest.fixture
async def base():
    async with serve(W, 7) as address:
        yield f"http://{address}"


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


def signature(response):
    return {name: response.headers.get(name) for name in SIGNATURE}


@pytest.mark.parametrize(
    "path",
    [
        "/health",
        "/health_generate",
        "/model_info",
        "/get_model_info",
        "/server_info",
        "/get_server_info",
        "/v1/models",
    ],
)
async def test_what_a_router_asks_is_answered_and_signed(base, http, path):
    async with http.get(base + path) as response:
        assert response.status == 200
        assert signature(response) == SIGNATURE
        told = await response.json()
    assert (told["worker"], told["incarnation"], told["pid"]) == (W, 7, os.getpid())


async def test_work_is_done_and_signed(base, http):
    async with http.post(base + "/generate", json={"text": "hello"}) as response:
        told = await response.json()
        assert told["text"].startswith("hello")
        assert told["meta_info"]["finish_reason"] == {"type": "stop"}
        assert told["incarnation"] == 7
    asked = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    async with http.post(base + "/v1/chat/completions", json=asked) as response:
        told = await response.json()
        assert (told["object"], told["model"], told["worker"]) == ("chat.completion", "m", W)
        assert told["choices"][0]["message"]["role"] == "assistant"
    async with http.get(base + "/server_info") as response:
        assert (await response.json())["served"] == 2


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff"])
async def test_a_bad_request_is_refused_and_signed(base, http, body):
    async with http.post(base + "/generate", data=body) as response:
        assert response.status == 400
        assert signature(response) == SIGNATURE


async def test_an_unknown_path_is_signed_too(base, http):
    async with http.get(base + "/nothing") as response:
        assert response.status == 404
        assert signature(response) == SIGNATURE


async def test_the_next_life_has_the_port_at_once(http):
    first = DemoWorker(name=W, incarnation=1)
    address = (await first.start())["primary"]
    port = int(address.rpartition(":")[2])
    second = DemoWorker(name=W, incarnation=2, port=port)
    with pytest.raises(OSError, match=str(port)) as taken:
        await second.start()
    assert taken.value.errno == errno.EADDRINUSE
    # A connection that stays open, as a router keeps it, must not hold the port.
    async with http.get(f"http://{address}/health"):
        await first.stop()
        assert (await second.start())["primary"] == address
    async with http.get(f"http://{address}/health") as response:
        assert response.headers["X-Rollbook-Incarnation"] == "2"
    await second.stop()
