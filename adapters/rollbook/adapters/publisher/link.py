"""The connection to NATS, made again whenever it is gone. Belongs to the publisher's loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import structlog

from rollbook.adapters.jetstream.client import Client
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.publisher.wire import Wire
from rollbook.projections.ending import apart
from rollbook.projections.ports import LogError, LogUnavailable

_log = structlog.get_logger(__name__)

ASK_WITHIN: Final = 2.0
"""Seconds for one question to the log."""
_CONNECT_WITHIN: Final = 5.0
"""Seconds for one attempt, within which the client itself tries every 0.2 s."""
_REFUSED_PAUSE: Final = 2.0
"""Seconds after a server that answered, and said no."""
_TICK: Final = 0.25
"""Seconds between two looks at what is overdue."""


class Link:
    """Keeps a `Wire`. `on_connected` is called after every (re)connection, `on_trouble` with what prevents one."""

    def __init__(
        self,
        connection: Connection,
        fleet: str,
        name: str,
        *,
        on_connected: Callable[[], None],
        on_trouble: Callable[[LogError], None],
    ) -> None:
        self._connection = connection
        self._fleet = fleet
        self._name = name
        self._on_connected = on_connected
        self._on_trouble = on_trouble
        self._wire: Wire | None = None
        self.reconnects = 0

    @property
    def connected(self) -> bool:
        """Whether NATS is connected now. Any thread."""
        wire = self._wire
        return wire is not None and wire.client.is_connected

    def wire(self) -> Wire:
        """To publish in bulk. Raises `LogUnavailable` if there is no connection."""
        if self._wire is None or not self._wire.client.is_connected:
            raise LogUnavailable(f"NATS at {self._connection.url} is not connected")
        return self._wire

    def client(self) -> Client:
        """The connection. Raises `LogUnavailable` if there is none."""
        return self.wire().client

    def log(self) -> JetStreamLog:
        """The fleet's log. Raises `LogUnavailable` if there is no connection."""
        return JetStreamLog(self.client(), self._fleet, timeout=ASK_WITHIN)

    async def keep(self) -> None:
        """Connect, and connect again, until cancelled."""
        try:
            while True:
                try:
                    client = await connect(self._connection, name=self._name, timeout=_CONNECT_WITHIN)
                    wire = Wire(client)
                    await wire.listen()
                except LogError as exc:
                    self._on_trouble(exc)
                    await asyncio.sleep(0 if isinstance(exc, LogUnavailable) else _REFUSED_PAUSE)
                    continue
                except Exception:  # noqa: BLE001 - without this loop nothing would be sent, and nobody would know why
                    _log.exception("publisher.connection.failed", server=self._connection.url)
                    await asyncio.sleep(_REFUSED_PAUSE)
                    continue
                client.reconnections.add(self._reconnected)
                _log.info("publisher.connected", server=self._connection.url, publisher=self._name)
                self._wire = wire
                self._on_connected()
                while not wire.client.is_closed:
                    await asyncio.sleep(_TICK)
                    wire.lose_overdue(time.monotonic())
                self.reconnects += 1
                await self._drop()
        finally:
            await apart(self._drop())

    def _reconnected(self) -> None:
        self.reconnects += 1
        if self._wire is not None:
            self._wire.lose_all()
        self._on_connected()

    async def _drop(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.close()
