"""Small inference servers in this process: what a router asks of a worker before it lists it, and one way to use it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress

from aiohttp import web
from support.until import until

_QUIET = logging.getLogger("support.workers")
_QUIET.disabled = True


class HttpWorker:
    """Listens on loopback; `stop` and `start` keep its port, so that it returns on the same URL."""

    def __init__(self, name: str = "worker") -> None:
        self.name = name
        self.healthy = True
        """False: `/health` answers 503."""
        self.gate: asyncio.Event | None = None
        """With one, requests for work are answered when it is set."""
        self.waiting = 0
        """Requests for work that are under way."""
        self.served = 0
        """Requests for work that it answered."""
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/health", self._health)
        for path in ("/model_info", "/get_model_info", "/server_info", "/get_server_info"):
            app.router.add_get(path, self._info)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/generate", self._generate)
        # The router also tries HTTP/2 on a new worker, which aiohttp would report as an error.
        runner = web.AppRunner(app, access_log=None, logger=_QUIET, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = runner.addresses[0][1]
        self._runner = runner

    async def stop(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def reached(self, count: int = 1) -> None:
        """Wait until so many requests for work are under way."""

        async def look() -> int:
            return self.waiting

        await until(look, lambda waiting: waiting >= count)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503, headers={"x-worker": self.name})

    async def _info(self, _: web.Request) -> web.Response:
        return web.json_response({"worker": self.name})

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": []})

    async def _generate(self, _: web.Request) -> web.Response:
        self.waiting += 1
        try:
            if self.gate is not None:
                await self.gate.wait()
        finally:
            self.waiting -= 1
        self.served += 1
        return web.json_response({"text": "ok", "worker": self.name})


@asynccontextmanager
async def http_worker(name: str = "worker") -> AsyncGenerator[HttpWorker]:
    worker = HttpWorker(name)
    await worker.start()
    try:
        yield worker
    finally:
        await worker.stop()


@asynccontextmanager
async def http_workers(count: int) -> AsyncGenerator[list[HttpWorker]]:
    workers = [HttpWorker(f"worker-{number}") for number in range(count)]
    try:
        for worker in workers:
            await worker.start()
        yield workers
    finally:
        for worker in workers:
            await worker.stop()


@asynccontextmanager
async def nobody_listens() -> AsyncGenerator[str]:
    """A URL that refuses connections, and that nobody else can get meanwhile."""
    with closing(socket.socket()) as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


@asynccontextmanager
async def tcp_server(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncGenerator[str]:
    """Something that listens on loopback and is no HTTP server; its connections end with it. Yields its URL."""
    open_connections: set[tuple[asyncio.Task[None] | None, asyncio.StreamWriter]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = (asyncio.current_task(), writer)
        open_connections.add(connection)
        try:
            await talk(reader, writer)
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            open_connections.discard(connection)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        tasks = [task for task, _ in open_connections if task is not None]
        for _, writer in open_connections:
            writer.transport.abort()
        await asyncio.gather(*tasks, return_exceptions=True)


async def never_answer(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """For `tcp_server`: take everything in and say nothing."""
    while await reader.read(65536):
        pass
