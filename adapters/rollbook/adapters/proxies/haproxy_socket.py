"""The Runtime API's socket: one command, one connection, one text as answer.

Its own ways of keeping a connection open (`prompt`, `;`) leave it to the reader to find where an answer ends, and some
answers end like none. HAProxy closes the connection when it has answered; that is an end which cannot be mistaken,
unless it dies in the middle. What it shows ends with an empty line: without that, what is missing would count as gone.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from rollbook.adapters.proxies.http import CONNECT_SECONDS, MOST_BYTES, in_words
from rollbook.events import RollbookError
from rollbook.projections.ports import ProxyUnavailable

CONNECTIONS: Final = 4
"""At a time: HAProxy takes ten by default, and Rollbook is not its only guest."""

_CHUNK: Final = 64 * 1024


class RuntimeSocket:
    """Asks one HAProxy. `address` is `unix:///path/of/its/socket` or `tcp://host:port`."""

    def __init__(self, proxy: str, address: str) -> None:
        parts = urlsplit(address)
        if parts.scheme == "unix" and not parts.netloc and parts.path.strip("/"):
            self._path: str | None = parts.path
        elif parts.scheme == "tcp" and parts.hostname and parts.port and not parts.path:
            self._path = None
            self._host, self._port = parts.hostname, parts.port
        else:
            raise RollbookError(
                f"{proxy}: {address[:80]!r} is not where a Runtime API listens; write unix:///run/haproxy/admin.sock "
                "or tcp://host:port"
            )
        self._proxy = proxy
        self._address = address
        self._free = asyncio.Semaphore(CONNECTIONS)
        self._closed = False

    def __repr__(self) -> str:
        return f"RuntimeSocket({self._proxy!r}, {self._address!r})"

    async def ask(self, command: str) -> str:
        """What it says to `command`, without the line breaks around it. Raises `ProxyUnavailable`.

        There is no deadline but the caller's. A command whose answer nobody waited for may still be carried out: a
        stopped HAProxy finds it in its socket when it goes on.
        """
        if self._closed:
            raise ProxyUnavailable(f"{self._proxy}: called after it was closed")
        asked = f"{self._proxy}: {command.partition(' /')[0]!r} at {self._address}"
        async with self._free:
            try:
                return await self._talk(command, asked)
            except OSError as exc:
                raise ProxyUnavailable(f"{asked} failed: {_in_words(exc)}") from exc

    async def close(self) -> None:
        """No connection is kept. Calls after this one fail."""
        self._closed = True

    async def _talk(self, command: str, asked: str) -> str:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await self._connect()
        try:
            writer.write(command.encode() + b"\n")
            await writer.drain()
            answer = bytearray()
            while chunk := await reader.read(_CHUNK):
                answer += chunk
                if len(answer) > MOST_BYTES:
                    raise ProxyUnavailable(f"{asked} answered more than {MOST_BYTES >> 20} MiB: is admin_url right?")
            if not answer:
                raise ProxyUnavailable(f"{asked} was hung up on without an answer: is admin_url right?")
            if command.startswith("show ") and not answer.endswith(b"\n\n"):
                raise ProxyUnavailable(
                    f"{asked} was hung up on in the middle, or this is not HAProxy's Runtime API: is admin_url right?"
                )
            return answer.decode(errors="replace").strip("\n")
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._path is not None:
            return await asyncio.open_unix_connection(self._path)
        return await asyncio.open_connection(self._host, self._port)


def _in_words(exc: OSError) -> str:
    words = in_words(exc)
    if isinstance(exc, PermissionError):
        return f"{words}; see `mode`, `user` and `group` of its `stats socket`"
    return words
