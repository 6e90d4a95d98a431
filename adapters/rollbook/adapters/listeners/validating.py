"""Whether workers that should be registered are, and serve: what a trainer asks before it sends its first batch."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Coroutine
from typing import Any, Final

from rollbook.adapters.jetstream.client import NotPermitted
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.publisher import Publisher
from rollbook.adapters.service.client import Controllers, ControllerSilent, NoController, Refusal
from rollbook.adapters.service.frames import BrokenReply
from rollbook.adapters.service.messages import VERIFY, VerifyRequest
from rollbook.adapters.waiting import NotInTime, wait_for
from rollbook.events import RollbookError
from rollbook.projections.looking.verification import WRONG, Verification
from rollbook.projections.looking.waiting import Goal

_AGAIN_SECONDS: Final = 0.5


class NotValidated(RollbookError):
    """Not every worker that should be registered is, or a proxy does not serve as it should."""


def block_on(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` on a thread and loop of its own, and wait for it: also where a loop runs already."""
    outcome: concurrent.futures.Future[None] = concurrent.futures.Future()

    def run() -> None:
        try:
            outcome.set_result(asyncio.run(work))
        except BaseException as exc:  # noqa: BLE001 - it is raised where it is waited for
            outcome.set_exception(exc)

    threading.Thread(target=run, name="rollbook-validate", daemon=True).start()
    outcome.result()


async def validate(
    publisher: Publisher,
    connection: Connection,
    goal: Goal,
    *,
    timeout: float,
    requests: int | None,
    asking: Connection,
) -> None:
    """What `publisher` said is in the log, `goal` is reached, and all proxies verify. Raises `NotValidated`."""
    deadline = time.monotonic() + timeout
    flushed = await publisher.aflush(timeout)
    if not flushed:
        unsent = flushed.unsent[0]
        raise NotValidated(f"not validated: {unsent.what} is not in the log: {unsent.reason}")
    try:
        await wait_for(goal, max(deadline - time.monotonic(), 0.0), publisher.fleet, connection)
    except NotInTime as exc:
        raise NotValidated(f"not validated: {exc}") from exc
    client = await connect(asking, name="rollbook-validate")
    try:
        controllers = Controllers(client, publisher.fleet)
        while True:
            request = VerifyRequest(requests=requests, deadline_seconds=max(deadline - time.monotonic(), 1.0))
            wrong = _wrong(await controllers.ask(VERIFY, request))
            if not wrong:
                return
            if time.monotonic() + _AGAIN_SECONDS > deadline:
                raise NotValidated("\n".join(["not validated:", *wrong]))
            await asyncio.sleep(_AGAIN_SECONDS)
    except (NotPermitted, NoController, ControllerSilent, Refusal, BrokenReply) as exc:
        raise NotValidated(f"the workers are registered, but nobody verified the proxies: {exc}") from exc
    finally:
        await client.close()


def _wrong(verification: Verification) -> list[str]:
    """A line for each thing that is not as it should be."""
    lines: list[str] = []
    for one in verification.proxies:
        if one.unreachable is not None:
            lines.append(f"  {one.proxy}: not read back: {one.unreachable}")
        lines += [f"  {one.proxy}: {line.change} {line.worker or line.url}: {line.reason}" for line in one.drift]
        lines += [f"  {one.proxy}: {count} requests: {why}" for why, count in one.failed.items()]
        lines += [
            f"  {one.proxy}: {who.worker or 'somebody'} answered: {who.reason or who.verdict}"
            for who in one.answered
            if who.verdict in WRONG
        ]
    return lines
