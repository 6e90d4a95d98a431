"""WorkerDown published → URL gone from the router's list, against the same done by hand.

By hand: two JetStream publishes (the fact and the intent), one `GET /workers`, one `DELETE /workers/{id}`, polled until
gone. A thread polls the router for both sides, so that both are seen by the same eye.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp

from bench.figures import Figure, ms, p50
from bench.stage import FLEET, Admin, controller
from rollbook.adapters.demo.router import Router
from rollbook.adapters.demo.worker import serve
from rollbook.adapters.jetstream.connection import connect
from rollbook.adapters.publisher import Publisher

SAMPLES = 100
PAYLOAD = b"x" * 250
MINE, BARE = "rollout-0-0", "rollout-1-0"


async def measure() -> list[Figure]:
    """In turns on one router: a worker that Rollbook registered, and one registered by hand."""
    with tempfile.TemporaryDirectory(prefix="rollbook-bench-") as folder:
        router = Router(Path(folder))
        await router.start()
        try:
            async with serve(MINE, 1) as mine, serve(BARE, 1) as bare:
                by_hand, ours = await _compare(Path(folder), router.url, {MINE: mine}, f"http://{bare}")
        finally:
            await router.kill()
    note = f"p50 {ms(p50(ours))} against {ms(p50(by_hand))} by hand, {SAMPLES} removals each in turns"
    value = p50(ours) / p50(by_hand)
    return [Figure(name="WorkerDown → removed", value=value, target=2.0, better="lower", unit="x by hand", note=note)]


async def _compare(folder: Path, router: str, workers: dict, bare_url: str) -> tuple[list[float], list[float]]:
    mine_url = f"http://{workers[MINE]}"
    by_hand: list[float] = []
    ours: list[float] = []
    async with controller(folder, {"router": router}, workers) as built, aiohttp.ClientSession() as session:
        admin = Admin(router, session)
        client = await connect(built.nats, name="bench-hand")
        js = client.jetstream()
        await js.add_stream(name="HAND", subjects=["hand"])
        publisher = Publisher(FLEET, built.nats)
        eye = _Eye(router)
        try:
            for life in range(1, SAMPLES + 1):
                await publisher.worker_up(MINE, incarnation=life)
                await admin.add(bare_url)
                await admin.until(mine_url, listed=True)
                await admin.until(bare_url, listed=True)
                gone = eye.watch(bare_url)
                begin = time.perf_counter()
                await js.publish("hand", PAYLOAD)
                found = await admin.list()
                await js.publish("hand", PAYLOAD)
                await admin.delete(found[bare_url])
                by_hand.append(await gone - begin)
                gone = eye.watch(mine_url)
                begin = time.perf_counter()
                publisher.worker_down(MINE, incarnation=life)
                ours.append(await gone - begin)
        finally:
            eye.close()
            await asyncio.to_thread(publisher.close, 5)
            await client.close()
    return by_hand, ours


class _Eye:
    """Polls the router's list on a thread of its own, and says when a URL was first not there."""

    def __init__(self, router: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._host = urlsplit(router).netloc
        self._wanted: tuple[str, asyncio.Future[float]] | None = None
        self._closed = False
        self._work = threading.Condition()
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def watch(self, url: str) -> asyncio.Future[float]:
        """Resolves to the `perf_counter` of the first listing without `url`."""
        future: asyncio.Future[float] = self._loop.create_future()
        with self._work:
            self._wanted = (url, future)
            self._work.notify()
        return future

    def _poll(self) -> None:
        connection = http.client.HTTPConnection(self._host)
        while True:
            with self._work:
                while self._wanted is None and not self._closed:
                    self._work.wait()
                if self._closed:
                    connection.close()
                    return
                assert self._wanted is not None
                url, future = self._wanted
            connection.request("GET", "/workers")
            urls = {worker["url"] for worker in json.loads(connection.getresponse().read())["workers"]}
            if url not in urls:
                seen = time.perf_counter()
                with self._work:
                    self._wanted = None
                self._loop.call_soon_threadsafe(future.set_result, seen)
            time.sleep(0.001)

    def close(self) -> None:
        with self._work:
            self._closed = True
            self._work.notify()
        self._thread.join()
