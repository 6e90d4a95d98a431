"""Small servers of ours that keep the rules of routers which cannot run here, to the letter (docs/proxies/).

What a test does to them happens at once and is theirs to see: they have no timers of their own.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import aiohttp
from aiohttp import web

_QUIET = logging.getLogger("support.small_routers")
_QUIET.disabled = True


class SmallRouter(ABC):
    """Listens on loopback; `stop` and `start` keep its port. A restart forgets everything."""

    def __init__(self) -> None:
        self.port = 0
        self.requests: list[tuple[str, str, Any]] = []
        """Method, path with query, and JSON body of every request, in order."""
        self._runner: web.AppRunner | None = None
        self._client: aiohttp.ClientSession | None = None
        self.forget()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @abstractmethod
    def forget(self) -> None:
        """What a new process knows: nothing."""

    @abstractmethod
    def routes(self) -> list[web.RouteDef]:
        """What it answers."""

    async def start(self) -> None:
        app = web.Application(middlewares=[self._note])
        app.add_routes(self.routes())
        runner = web.AppRunner(app, access_log=None, logger=_QUIET, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True).start()
        self.port = runner.addresses[0][1]
        self._runner = runner
        self._client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5))

    async def stop(self) -> None:
        runner, self._runner = self._runner, None
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        if runner is not None:
            await runner.cleanup()

    async def restart(self) -> None:
        await self.stop()
        self.forget()
        await self.start()

    def asked(self, path: str) -> list[Any]:
        """The bodies of the requests to `path`."""
        return [body for _, target, body in self.requests if target.partition("?")[0] == path]

    @web.middleware
    async def _note(self, request: web.Request, handler: Any) -> web.StreamResponse:
        text = await request.text()
        body = text
        with suppress(ValueError):
            body = json.loads(text)
        self.requests.append((request.method, request.path_qs, body))
        return await handler(request)

    async def healthy(self, url: str) -> bool:
        assert self._client is not None
        try:
            async with self._client.get(f"{url}/health") as response:
                return response.status == 200
        except (aiohttp.ClientError, OSError):
            return False

    async def forward(self, url: str, request: web.Request) -> web.Response:
        """Give the request to a worker and its answer to the client."""
        assert self._client is not None
        try:
            async with self._client.request(
                request.method, f"{url}{request.path_qs}", data=await request.read()
            ) as came:
                return web.Response(status=came.status, body=await came.read(), content_type=came.content_type)
        except (aiohttp.ClientError, OSError) as exc:
            return web.Response(status=500, text=f"Internal Server Error: {exc}")


class MilesRouter(SmallRouter):
    """Adds and lists. Whatever else is asked for is a worker's business: `/remove_worker` too."""

    def forget(self) -> None:
        self.running: Counter[str] = Counter()
        self.urls: list[str] = []
        self.dead: set[str] = set()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/add_worker", self._add),
            web.get("/list_workers", self._list),
            web.route("*", "/{path:.*}", self._pass_on),
        ]

    async def check_health(self) -> None:
        """One round of its health check. Who fails is dead, and stays so."""
        self.dead.update([url for url in self.urls if not await self.healthy(url)])

    async def _add(self, request: web.Request) -> web.Response:
        url = request.query.get("url")
        if not url:
            return web.json_response({"error": "worker_url is required"}, status=400)
        if url not in self.urls:
            self.urls.append(url)
        return web.json_response({"status": "success", "worker_urls": {url: self.running[url] for url in self.urls}})

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response({"urls": self.urls})

    async def _pass_on(self, request: web.Request) -> web.Response:
        usable = [url for url in self.urls if url not in self.dead]
        if not usable:
            return web.Response(status=500, text="Internal Server Error")
        url = min(usable, key=lambda one: self.running[one])
        self.running[url] += 1
        try:
            return await self.forward(url, request)
        finally:
            self.running[url] -= 1


class SlimeRouter(MilesRouter):
    """Passes nothing on that is no request for work, and says that it broke instead."""

    async def _pass_on(self, request: web.Request) -> web.Response:
        if request.path not in {"/generate", "/v1/chat/completions"}:
            return web.Response(status=500, text="Internal Server Error")
        return await super()._pass_on(request)


class LmdeployRouter(SmallRouter):
    """LMDeploy's proxy 0.18: 200 whatever happens, and the truth in the body."""

    def forget(self) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}
        self.terminated: list[str] = []

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/nodes/add", self._add),
            web.post("/nodes/remove", self._remove),
            web.post("/nodes/terminate", self._terminate),
            web.get("/nodes/status", self._status),
            web.post("/v1/chat/completions", self._work),
        ]

    async def drop_the_silent(self) -> None:
        """What it does with nodes that gave no sign of health for 90 seconds."""
        for url in [url for url in self.nodes if not await self.healthy(url)]:
            del self.nodes[url]

    async def _add(self, request: web.Request) -> web.Response:
        body = await request.json()
        models = await self._models(body["url"])
        if models is None:
            failure = {"error_code": 10402, "text": "Failed to get response after a period of time"}
            return web.json_response(json.dumps(failure) + "\n")
        status = {"role": 1, "unfinished": 0, "latency": [], "speed": None, **(body.get("status") or {})}
        self.nodes[body["url"]] = {**status, "models": models}
        return web.json_response("Added successfully")

    async def _models(self, url: str) -> list[str] | None:
        assert self._client is not None
        try:
            async with self._client.get(f"{url}/v1/models") as response:
                return [model["id"] for model in (await response.json())["data"]]
        except (aiohttp.ClientError, OSError, ValueError):
            return None

    async def _remove(self, request: web.Request) -> web.Response:
        self.nodes.pop((await request.json())["url"], None)
        return web.json_response("Deleted successfully")

    async def _terminate(self, request: web.Request) -> web.Response:
        url = (await request.json())["url"]
        self.terminated.append(url)
        self.nodes.pop(url, None)
        return web.json_response("Terminated successfully")

    async def _status(self, _: web.Request) -> web.Response:
        return web.json_response(self.nodes)

    async def _work(self, request: web.Request) -> web.Response:
        if not self.nodes:
            return web.json_response({"error_code": 10400, "text": "no such model"})
        return await self.forward(min(self.nodes, key=lambda url: self.nodes[url]["unfinished"]), request)


class RoutedApi(SmallRouter):
    """XTuner's routed API: tells nothing, counts twice what it is told twice, and wipes a model when asked vaguely."""

    def forget(self) -> None:
        self.filed: list[tuple[str, str, str]] = []
        """Model, URL and key, in order."""
        self._turn = 0

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/v1/models/new", self._new),
            web.post("/v1/models/delete", self._delete),
            web.post("/v1/chat/completions", self._work),
        ]

    def bases(self, model: str) -> list[str]:
        return [base for name, base, _ in self.filed if name == model]

    async def _new(self, request: web.Request) -> web.Response:
        body = await request.json()
        missing = [key for key in ("model_name", "api_key", "api_base") if not isinstance(body.get(key), str)]
        if missing:
            return web.json_response({"error": f"{missing[0]} is missing"}, status=400)
        self.filed.append((body["model_name"], body["api_base"], body["api_key"]))
        return web.json_response({"message": "added"})

    async def _delete(self, request: web.Request) -> web.Response:
        body = await request.json()
        model, base = body["model_name"], body.get("api_base")
        gone = [one for one in self.filed if one[0] == model and base in {None, "", one[1]}]
        if not gone:
            return web.json_response({"error": f"no such deployment of {model}"}, status=404)
        self.filed = [one for one in self.filed if one not in gone]
        return web.json_response({"message": f"deleted {len(gone)}"})

    async def _work(self, request: web.Request) -> web.Response:
        bases = self.bases((await request.json()).get("model", ""))
        if not bases:
            return web.json_response({"error": "no such model"}, status=404)
        self._turn += 1
        return await self.forward(bases[self._turn % len(bases)], request)


class Abacus(SmallRouter):
    """The made-up router of examples/own-kind."""

    def forget(self) -> None:
        self.columns: dict[str, dict[str, Any]] = {}

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/columns", self._list),
            web.put("/columns/{name}", self._put),
            web.delete("/columns/{name}", self._delete),
        ]

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response({"columns": [{"name": name, **column} for name, column in self.columns.items()]})

    async def _put(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name in self.columns:
            return web.Response(status=409)
        self.columns[name] = await request.json()
        return web.Response(status=201)

    async def _delete(self, request: web.Request) -> web.Response:
        return web.Response(status=204 if self.columns.pop(request.match_info["name"], None) else 404)


R = TypeVar("R", bound=SmallRouter)


@asynccontextmanager
async def small_router(kind: type[R]) -> AsyncGenerator[R]:
    router = kind()
    await router.start()
    try:
        yield router
    finally:
        await router.stop()
