"""Live requests through the router, each recorded: when, by whom, and why not.

Requests are sent at a steady pace whatever becomes of them (a client that waits for slow answers would not see an
outage). Nothing is tried again here: what the router itself tries again is the router's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from typing import Any, Final

import aiohttp
import msgspec

from rollbook.adapters.demo.records import Request

REQUEST_SECONDS: Final = 15.0
"""Bound on one request; a worker takes a small part of a second."""

MOST_IN_FLIGHT: Final = 200
"""Beyond it a request is not sent: the machine is too slow for the pace."""

_BODY: Final = {"text": "who is there?", "sampling_params": {"max_new_tokens": 1}}


class Who(msgspec.Struct, frozen=True):
    """Which life answered, by its own word; the rest of the answer is not looked at."""

    worker: str
    incarnation: int
    pid: int


def who_answered(body: bytes) -> Who:
    """Raises `msgspec.DecodeError` if it was no demo worker."""
    return msgspec.json.decode(body, type=Who)


class Traffic:
    """Sends to one router. `requests` grows as they end, in the order of their ends."""

    def __init__(self, url: str, per_second: float) -> None:
        self.requests: list[Request] = []
        self.failed = 0
        self._url = url
        self._pause = 1 / per_second
        self._flying: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Send until `stop` is set; then wait for the answers to what was sent."""
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=REQUEST_SECONDS)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            try:
                due = time.monotonic()
                while not stop.is_set():
                    if len(self._flying) < MOST_IN_FLIGHT:
                        self._start(self._one(session))
                    due = max(due + self._pause, time.monotonic() - 1)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(max(due - time.monotonic(), 0)):
                            await stop.wait()
                if self._flying:
                    await asyncio.wait(self._flying)
            finally:
                for task in self._flying:
                    task.cancel()
                await asyncio.gather(*self._flying, return_exceptions=True)

    def _start(self, request: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(request)
        self._flying.add(task)
        task.add_done_callback(self._flying.discard)

    async def _one(self, session: aiohttp.ClientSession) -> None:
        sent, began = time.time(), time.monotonic()
        who: Who | None = None
        failure: str | None = None
        try:
            async with session.post(f"{self._url}/generate", json=_BODY) as response:
                body = await response.read()
                if response.status == 200:  # noqa: PLR2004 - HTTP's word for yes
                    who = who_answered(body)
                else:
                    failure = f"the router answered {response.status}"
        except msgspec.DecodeError:
            failure = "the answer was not a demo worker's"
        except TimeoutError:
            failure = f"no answer within {REQUEST_SECONDS:g} s"
        except aiohttp.ClientConnectorError:
            failure = "the router did not take the connection"
        except (aiohttp.ClientError, OSError):
            failure = "the router broke the connection"
        done = sent + time.monotonic() - began
        self.failed += failure is not None
        self.requests.append(
            Request(sent=sent, done=done, failure=failure)
            if who is None
            else Request(sent=sent, done=done, worker=who.worker, incarnation=who.incarnation, pid=who.pid)
        )
