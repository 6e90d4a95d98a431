"""`rollbook demo-worker`: a small HTTP worker that says by itself when it is up and when it goes. Compose runs it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from rollbook.adapters.cli.common import ConfigFile, Port, asked_to_stop, load_client_config, parse_duration, run
from rollbook.adapters.cli.exits import Exit
from rollbook.adapters.cli.output import say
from rollbook.events import RollbookError, validate_name

if TYPE_CHECKING:
    from rollbook.adapters.publisher import Publisher

EXAMPLE = """\
Example:

    rollbook demo-worker --name rollout-0-0 --port 8000"""

_CLOSE_SECONDS = 5.0


class CannotServe(RollbookError):
    """The worker cannot listen where it should."""


def demo_worker(
    *,
    name: Annotated[str, Parameter(help="Its name, such as rollout-0-0.")],
    host: Annotated[str, Parameter(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[Port, Parameter(help="The port to listen on; 0 takes a free one.")] = 8000,
    drain: Annotated[str, Parameter(help="How long to go on serving after it said that it is about to stop.")] = "2s",
    config: ConfigFile = None,
) -> int:
    """Serve what routers ask of an inference server, as one life of a worker, until SIGTERM or Ctrl-C.

    It publishes started and up, and on its way out draining and down (planned).
    """
    from rollbook.adapters import logs
    from rollbook.adapters.cli.publish import open_publisher

    validate_name("worker", name)
    seconds = parse_duration(drain)
    client = load_client_config(config)
    logs.configure(environ=os.environ)
    return run(_serve(open_publisher(client), name, host, port, seconds))


async def _serve(publisher: Publisher, name: str, host: str, port: int, drain: float) -> int:
    from rollbook.adapters.demo.worker import serve
    from rollbook.adapters.proxies.http import in_words
    from rollbook.projections.ports import HostAndPort

    stop = asked_to_stop()
    life = publisher.worker(name)
    try:
        life.started(pid=os.getpid())
        incarnation = await _unless(stop, life.numbered())
        if incarnation is None:
            return Exit.DONE
        try:
            async with serve(name, incarnation, host, port) as address:
                life.up()
                say(f"{name}, life {incarnation}, serves on {address}")
                await stop.wait()
                life.draining(deadline_seconds=drain)
                await asyncio.sleep(drain)
        except OSError as exc:
            trouble = f"cannot listen on {HostAndPort(host, port)}: {in_words(exc)}"
            life.down(evidence="exited", reason=trouble)
            raise CannotServe(f"{name} {trouble}; choose another --port or --host") from exc
        life.down(evidence="planned", reason="stopped by a signal")
    finally:
        # A life that the log never numbered has nothing to say that anybody waits for.
        left = (await publisher.aclose(_CLOSE_SECONDS if life.incarnation else 0)).unsent
        for fact in left:
            say(f"not sent: {fact.what}: {fact.reason}")
    return Exit.DONE


async def _unless(stop: asyncio.Event, awaited: Coroutine[Any, Any, int]) -> int | None:
    """What `awaited` gives, or None if `stop` comes first."""
    work, stopping = asyncio.ensure_future(awaited), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return work.result() if work.done() else None
    finally:
        work.cancel()
        stopping.cancel()
