"""What all providers have in common: one look-up, `locate`, told from there; and addresses as other programs say them.

A provider answers `locate` and `list_workers`; the addresses of a single worker come from a `locate` of its own, so
that no two ways of asking can disagree, and nothing is kept between two of them [I6].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

from rollbook.adapters.ray.ports import PRIMARY
from rollbook.adapters.settings.decode import describe
from rollbook.adapters.settings.model import parse_host_and_port
from rollbook.projections.ports import HostAndPort, Located, ProviderWorker, UnknownWorker, WorkerUnreachable

DEADLINE: Final = 2.5
"""Seconds for one look-up: longer than the 1.4-2 s that Ray takes to notice a broken connection and come back, and less
than `reconcile.call_deadline`, or nobody would learn why there was no answer."""
MOST_ADDRESSES: Final = 1024
ANY: Final = 0
"""The incarnation of whoever cannot be told apart from its former lives: it matches each of them."""


class Locating(ABC):
    """A provider whose look-up is `locate`."""

    who: str
    """Who knows the workers, for the messages: `the framework`."""

    async def get_addr(self, worker_name: str) -> HostAndPort:
        """The primary address now. Raises `UnknownWorker`, `WorkerUnreachable` or `ProviderUnavailable`."""
        addresses = await self.get_addrs(worker_name)
        if PRIMARY not in addresses:
            known = ", ".join(sorted(addresses))
            raise WorkerUnreachable(f"worker {worker_name!r} has no {PRIMARY} address, only {known}, says {self.who}")
        return addresses[PRIMARY]

    async def get_addrs(self, worker_name: str) -> dict[str, HostAndPort]:
        """All its addresses now, by name. Raises as `get_addr`."""
        located = (await self.locate([worker_name])).get(worker_name)
        if located is None:
            raise UnknownWorker(f"worker {worker_name!r} is not known to {self.who}")
        if not located.alive or not located.addresses:
            life = f" (incarnation {located.incarnation})" if located.incarnation != ANY else ""
            state = "has no address now" if located.alive else "is dead; wait for its next life"
            raise WorkerUnreachable(f"worker {worker_name!r}{life} {state}, says {self.who}")
        return located.addresses

    @abstractmethod
    async def locate(self, names: Iterable[str]) -> dict[str, Located]:
        """All that it knows of `names`; unknown ones are left out. Raises `ProviderUnavailable`."""

    @abstractmethod
    async def list_workers(self) -> list[ProviderWorker]:
        """Every worker that it knows. Raises `ProviderUnavailable`."""


def named_addresses(answer: object) -> dict[str, HostAndPort]:
    """What a framework answered, as addresses by name; without those that are None. Raises `ValueError`."""
    if answer is None:
        return {}
    if isinstance(answer, Mapping):
        if len(answer) > MOST_ADDRESSES:
            raise ValueError(f"it has {len(answer)} entries; {MOST_ADDRESSES} named addresses are allowed")
        return {str(name): address(one) for name, one in answer.items() if one is not None}
    return {PRIMARY: address(answer)}


def address(one: object) -> HostAndPort:
    """One address: a URL, `host:port`, a pair, or anything with `host` and `port`. Raises `ValueError`."""
    match one:
        case HostAndPort():
            return _pair(str(one.host), one.port)
        case str():
            return parse_host_and_port(_netloc(one) if "//" in one else one)
        case (str(host), int(port)):
            return _pair(host, port)
        case _ if isinstance(name := getattr(one, "host", None), str):
            return _pair(name, getattr(one, "port", None))
        case _:
            raise ValueError(f"{describe(one)} is no address; give a URL, host:port or a pair")


def _pair(host: str, port: object) -> HostAndPort:
    return parse_host_and_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")


def _netloc(url: str) -> str:
    parts = urlsplit(url)
    if parts.port is not None or not parts.hostname:
        return parts.netloc
    return f"{parts.netloc}:{443 if parts.scheme == 'https' else 80}"
