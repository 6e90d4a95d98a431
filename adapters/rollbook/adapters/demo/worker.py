"""A small real worker: an HTTP server that answers what routers ask of an inference server, and says who it is.

The demo, the tests and compose.yaml run it where an engine would be. Every answer carries the worker's name, its
incarnation and its process id, as headers and in the JSON, so that whoever asks through a router learns which life
served.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Final

from rollbook.projections.ports import HostAndPort

if TYPE_CHECKING:
    from aiohttp import web

MODEL: Final = "rollbook-demo"
HEADER_WORKER: Final = "X-Rollbook-Worker"
HEADER_INCARNATION: Final = "X-Rollbook-Incarnation"
HEADER_PID: Final = "X-Rollbook-Pid"


class DemoWorker:
    """One life of one worker. Keeps the contract of `rollbook.adapters.ray.guest.WorkerActor`."""

    def __init__(
        self, *, name: str, incarnation: int, host: str = "127.0.0.1", port: int = 0, answer_seconds: float = 0.0
    ) -> None:
        """Listen on `host` and `port` once started; 0 lets the system choose. An answer takes `answer_seconds`."""
        self.name = name
        self.incarnation = incarnation
        self._host = host
        self._port = port
        self._answer_seconds = answer_seconds
        self._runner: web.AppRunner | None = None
        self._served = 0

    async def start(self) -> dict[str, str]:
        """Listen. Returns `{"primary": "host:port"}`; raises `OSError` if the port is taken."""
        from aiohttp import web

        app = web.Application()
        app.on_response_prepare.append(self._sign)
        app.add_routes(
            [
                web.get("/health", self._health),
                web.get("/health_generate", self._health),
                web.get("/model_info", self._model_info),
                web.get("/get_model_info", self._model_info),
                web.get("/server_info", self._server_info),
                web.get("/get_server_info", self._server_info),
                web.get("/v1/models", self._models),
                web.post("/generate", self._generate),
                web.post("/v1/chat/completions", self._chat),
            ]
        )
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=2)
        await runner.setup()
        try:
            # reuse_address: the next life gets the port at once, whatever connections of this one linger.
            await web.TCPSite(runner, self._host, self._port, reuse_address=True).start()
        except BaseException:
            await runner.cleanup()
            raise
        self._runner = runner
        address = runner.addresses[0]
        return {"primary": str(HostAndPort(address[0], address[1]))}

    async def stop(self) -> None:
        """Let running requests end (2 s at most) and stop listening."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    @property
    def identity(self) -> dict[str, Any]:
        """Who answers."""
        return {"worker": self.name, "incarnation": self.incarnation, "pid": os.getpid()}

    async def _sign(self, _: web.Request, response: web.StreamResponse) -> None:
        response.headers[HEADER_WORKER] = self.name
        response.headers[HEADER_INCARNATION] = str(self.incarnation)
        response.headers[HEADER_PID] = str(os.getpid())

    async def _health(self, _: web.Request) -> web.Response:
        return self._json({"status": "ok"})

    async def _model_info(self, _: web.Request) -> web.Response:
        return self._json(
            {"model_path": MODEL, "tokenizer_path": MODEL, "is_generation": True, "weight_version": "default"}
        )

    async def _server_info(self, _: web.Request) -> web.Response:
        return self._json({"model_path": MODEL, "tp_size": 1, "dp_size": 1, "version": "0", "served": self._served})

    async def _models(self, _: web.Request) -> web.Response:
        model = {"id": MODEL, "object": "model", "owned_by": "rollbook", "root": MODEL, "max_model_len": 4096}
        return self._json({"object": "list", "data": [model]})

    async def _generate(self, request: web.Request) -> web.Response:
        asked = await self._asked(request)
        text = f"{asked.get('text', '')} ... said {self.name}, life {self.incarnation}"
        meta = {"id": f"{self.name}-{self._served}", "finish_reason": {"type": "stop"}, "completion_tokens": 1}
        return self._json({"text": text, "meta_info": meta})

    async def _chat(self, request: web.Request) -> web.Response:
        asked = await self._asked(request)
        message = {"role": "assistant", "content": f"said {self.name}, life {self.incarnation}"}
        return self._json(
            {
                "id": f"chatcmpl-{self.name}-{self.incarnation}-{self._served}",
                "object": "chat.completion",
                "created": int(time.time()),
                "model": str(asked.get("model", MODEL)),
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }
        )

    async def _asked(self, request: web.Request) -> dict[str, Any]:
        """The request's JSON object; anything else is answered with 400."""
        from aiohttp import web

        try:
            asked = await request.json()
        except ValueError:
            asked = None
        if not isinstance(asked, dict):
            raise web.HTTPBadRequest(text="the body must be a JSON object")
        await asyncio.sleep(self._answer_seconds)
        self._served += 1
        return asked

    def _json(self, content: dict[str, Any]) -> web.Response:
        from aiohttp import web

        return web.json_response({**content, **self.identity})


@contextlib.asynccontextmanager
async def serve(name: str, incarnation: int, host: str = "127.0.0.1", port: int = 0) -> AsyncGenerator[HostAndPort]:
    """Serve in this process for as long as the context is open. Gives the address; raises `OSError` if it is taken."""
    worker = DemoWorker(name=name, incarnation=incarnation, host=host, port=port)
    address = (await worker.start())["primary"]
    bound, _, number = address.rpartition(":")
    try:
        yield HostAndPort(bound.strip("[]"), int(number))
    finally:
        await worker.stop()
