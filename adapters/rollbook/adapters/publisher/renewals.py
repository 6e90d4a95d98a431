"""Letting hear, outside the log, of lives that promised it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from rollbook.adapters.publisher.life import Leased
from rollbook.adapters.publisher.link import Link
from rollbook.projections.ports import LogUnavailable
from rollbook.projections.state.leases import Renewal

OFTEN: Final = 3
"""Renewals within one lease, so that two may be lost."""
LOOK_SECONDS: Final = 1.0
"""Between two looks at whether there is anything to renew; and the longest pause, so that a new lease is not late."""
_SHORTEST: Final = 0.1
_SEND_WITHIN: Final = 1.0


def renewal_subject(fleet: str, worker: str) -> str:
    """Where it is said that a worker lives; `*` for all of them."""
    return f"rollbook-rpc.{fleet}.lease.{worker}"


async def renew(fleet: str, link: Link, leased: Callable[[], Sequence[Leased]]) -> None:
    """Say of all that are `leased` that they live, for ever. Without NATS nothing is said, and nothing is kept."""
    while True:
        lives = leased()
        if lives and link.connected:
            messages: list[tuple[str, bytes, dict[str, str]]] = [
                (
                    renewal_subject(fleet, life.worker),
                    msgspec.json.encode(Renewal(worker=life.worker, incarnation=life.incarnation)),
                    {},
                )
                for life in lives
            ]
            with contextlib.suppress(LogUnavailable):
                await link.client().tell(messages, timeout=_SEND_WITHIN)
        shortest = min((life.lease for life in lives), default=LOOK_SECONDS * OFTEN)
        await asyncio.sleep(min(max(shortest / OFTEN, _SHORTEST), LOOK_SECONDS))
