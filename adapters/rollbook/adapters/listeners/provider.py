"""A worker provider over a framework's own look-up: where a worker is, asked at the moment that it is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from rollbook.adapters.ray.border import RayThread
from rollbook.adapters.settings.model import parse_host_and_port
from rollbook.projections.ports import (
    HostAndPort,
    Located,
    ProviderUnavailable,
    ProviderWorker,
    UnknownWorker,
    WorkerUnreachable,
)

T = TypeVar("T")

DEADLINE: Final = 2.5
"""Seconds for one look-up; less than `reconcile.call_deadline`."""
PRIMARY: Final = "primary"
_ANY: Final = 0
"""A framework does not number lives, so the address is that of whichever is there."""


class FrameworkProvider:
    """Asks `get_addr(worker_name)` of the framework at every look-up, and `names()` for who is there. Caches nothing.

    `get_addr` answers an address, or several by name, of which `primary` takes the requests; None for a worker that is
    dead or has none yet; and raises `KeyError` for one that it does not know. An address is a URL, `host:port`, a pair,
    or anything with `host` and `port`. Both functions may block: they run on a thread, for `deadline` seconds at most.
    """

    def __init__(
        self, get_addr: Callable[[str], Any], names: Callable[[], Iterable[str]], *, deadline: float = DEADLINE
    ) -> None:
        self._get_addr = get_addr
        self._names = names
        self._deadline = deadline
        self._thread = RayThread()

    async def get_addr(self, worker_name: str) -> HostAndPort:
        """The primary address now. Raises `UnknownWorker`, `WorkerUnreachable` or `ProviderUnavailable`."""
        known = await self._ask(lambda: self._look([worker_name]))
        if worker_name not in known:
            raise UnknownWorker(f"the framework knows no worker {worker_name!r}")
        if PRIMARY not in known[worker_name]:
            raise WorkerUnreachable(f"the framework has no {PRIMARY} address of worker {worker_name!r} now")
        return known[worker_name][PRIMARY]

    async def locate(self, names: Iterable[str]) -> dict[str, Located]:
        """All that it knows of `names`; unknown ones are left out. Raises `ProviderUnavailable`."""
        wanted = list(names)
        known = await self._ask(lambda: self._look(wanted))
        return {name: Located(addresses, _ANY) for name, addresses in known.items()}

    async def list_workers(self) -> list[ProviderWorker]:
        """Every worker that it knows; alive are those with an address. Raises `ProviderUnavailable`."""
        known = await self._ask(lambda: self._look(list(self._names())))
        return [ProviderWorker(name, _ANY, alive=bool(addresses)) for name, addresses in known.items()]

    def _look(self, names: list[str]) -> dict[str, dict[str, HostAndPort]]:
        found: dict[str, dict[str, HostAndPort]] = {}
        for name in names:
            try:
                found[name] = named_addresses(self._get_addr(name))
            except KeyError:
                continue
        return found

    async def _ask(self, look: Callable[[], T]) -> T:
        """Run `look` on the thread, after those before it; while one hangs, there is no answer."""
        try:
            async with asyncio.timeout(self._deadline):
                return await asyncio.wrap_future(self._thread.submit(look))
        except TimeoutError as exc:
            raise ProviderUnavailable(f"no answer from the framework within {self._deadline:g} s") from exc
        except Exception as exc:
            raise ProviderUnavailable(f"the framework's look-up failed: {exc!r}") from exc


def named_addresses(answer: object) -> dict[str, HostAndPort]:
    """What a framework answered, as addresses by name; without those that are None. Raises `ValueError`."""
    if answer is None:
        return {}
    if isinstance(answer, Mapping):
        return {str(name): address(one) for name, one in answer.items() if one is not None}
    return {PRIMARY: address(answer)}


def address(one: object) -> HostAndPort:
    """One address: a URL, `host:port`, a pair, or anything with `host` and `port`. Raises `ValueError`."""
    match one:
        case HostAndPort():
            return one
        case str():
            return parse_host_and_port(_netloc(one) if "//" in one else one)
        case (str(host), int(port)):
            return HostAndPort(host, port)
    try:
        return HostAndPort(str(one.host), int(one.port))  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
    except (AttributeError, TypeError) as exc:
        raise ValueError(f"{one!r} is no address; give a URL, host:port or a pair") from exc


def _netloc(url: str) -> str:
    parts = urlsplit(url)
    if parts.port is not None or not parts.hostname:
        return parts.netloc
    return f"{parts.netloc}:{443 if parts.scheme == 'https' else 80}"
