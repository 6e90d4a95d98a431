"""One bench for each kind of proxy: the proxy, workers that it can reach, and what happens to it from outside.

The contract of the port is asked of every bench; what a kind cannot do, its capabilities say.
"""

from __future__ import annotations

import random
import sys
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from support.routers import Haproxy, RouterProcess, SglangRouter, VllmRouter
from support.small_routers import Abacus, LmdeployRouter, MilesRouter, RoutedApi, SmallRouter
from support.workers import http_workers, nobody_listens

from rollbook.adapters.clock import SystemClock
from rollbook.adapters.memory.proxy import MemoryProxy
from rollbook.adapters.proxies.haproxy import HaproxyOptions, HaproxyProxy
from rollbook.adapters.proxies.kinds import ProxyConfig
from rollbook.adapters.proxies.lmdeploy import LmdeployProxy
from rollbook.adapters.proxies.miles import MilesProxy
from rollbook.adapters.proxies.routed_api import RoutedApiOptions, RoutedApiProxy
from rollbook.adapters.proxies.sglang import SglangProxy
from rollbook.adapters.proxies.vllm import VllmProxy
from rollbook.projections.ports import Capabilities, Proxy, Target

FLEET = "math-rl"
EXAMPLE = Path(__file__).parents[2] / "examples" / "own-kind" / "rollbook_abacus.py"
"""The package of docs/proxies/own-kind.md."""


@cache
def example() -> ModuleType:
    """Its module, which is not installed here."""
    spec = spec_from_file_location(EXAMPLE.stem, EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[EXAMPLE.stem] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Bench(ABC):
    """What a test of the contract works with."""

    proxy: Proxy
    one_entry_a_url = True
    """Whether the router refuses a second entry of a URL, whoever's it is."""
    refuses_repetitions = True
    """Whether it says no to a second add of what is listed; the others have done it already."""
    tells_health = True
    """Whether a listing says who is healthy."""

    @abstractmethod
    async def workers(self, count: int) -> list[str]:
        """URLs of so many workers that answer."""

    @abstractmethod
    async def unreachable(self) -> str:
        """A URL that answers nothing."""

    @abstractmethod
    async def stranger(self, url: str) -> None:
        """Another fleet adds a worker of its own."""

    @abstractmethod
    def restart(self) -> None:
        """The router forgets what a restart makes it forget."""

    async def worker(self) -> str:
        return (await self.workers(1))[0]


class MemoryBench(Bench):
    """A router in memory, and the world of URLs that it sees."""

    def __init__(self, capabilities: Capabilities) -> None:
        self._answering: set[str] = set()
        self.proxy: MemoryProxy = MemoryProxy(
            "router",
            FLEET,
            SystemClock(),
            random.Random(7),
            answers=lambda url: url in self._answering,
            patience=0.2,
            capabilities=capabilities,
        )

    async def workers(self, count: int) -> list[str]:
        urls = [f"http://10.0.0.1:{8000 + len(self._answering) + number}" for number in range(count)]
        self._answering.update(urls)
        return urls

    async def unreachable(self) -> str:
        return "http://10.0.0.9:1"

    async def stranger(self, url: str) -> None:
        self.proxy.put(url, fleet="other", worker="rollout-0-0", incarnation=1)

    def restart(self) -> None:
        self.proxy.restart()


class RouterBench(Bench):
    """A real router; workers are HTTP servers in this process."""

    def __init__(self, router: Any, stack: AsyncExitStack) -> None:
        self.router: Any = router
        self._stack = stack
        self.proxy = self.make(FLEET)

    @abstractmethod
    def make(self, fleet: str) -> Proxy:
        """A proxy of that fleet's controller."""

    async def workers(self, count: int) -> list[str]:
        return [worker.url for worker in await self._stack.enter_async_context(http_workers(count))]

    async def unreachable(self) -> str:
        return await self._stack.enter_async_context(nobody_listens())

    async def stranger(self, url: str) -> None:
        other = self.make("other")
        try:
            await other.add(Target(worker="rollout-0-0", incarnation=1, url=url))
        finally:
            await other.close()

    def restart(self) -> None:
        self.router.restart()


class SmallBench(RouterBench):
    """A small server of ours that keeps a router's rules, new for each test."""

    router: SmallRouter
    refuses_repetitions = False
    tells_health = False

    def restart(self) -> None:
        self.router.forget()


class MilesBench(SmallBench):
    def make(self, fleet: str) -> Proxy:
        return MilesProxy(ProxyConfig(name="router", admin_url=self.router.url, fleet=fleet))


class LmdeployBench(SmallBench):
    def make(self, fleet: str) -> Proxy:
        return LmdeployProxy(ProxyConfig(name="router", admin_url=self.router.url, fleet=fleet))


class RoutedApiBench(SmallBench):
    def make(self, fleet: str) -> Proxy:
        options = RoutedApiOptions(model_name="qwen3-8b")
        return RoutedApiProxy(ProxyConfig(name="router", admin_url=self.router.url, fleet=fleet, options=options))


class AbacusBench(SmallBench):
    """The example of a package with a kind of its own."""

    one_entry_a_url = False
    refuses_repetitions = True

    def make(self, fleet: str) -> Proxy:
        options = example().AbacusOptions()
        return example().AbacusProxy(
            ProxyConfig(name="router", admin_url=self.router.url, fleet=fleet, options=options)
        )


class SglangBench(RouterBench):
    router: SglangRouter

    def make(self, fleet: str) -> Proxy:
        return SglangProxy(ProxyConfig(name="router", admin_url=self.router.url, fleet=fleet))


class VllmBench(RouterBench):
    router: VllmRouter

    def make(self, fleet: str) -> Proxy:
        return VllmProxy(ProxyConfig(name="router", admin_url=self.router.url, fleet=fleet))


class HaproxyBench(RouterBench):
    router: Haproxy
    one_entry_a_url = False

    def make(self, fleet: str) -> Proxy:
        options = HaproxyOptions(backend="workers")
        return HaproxyProxy(ProxyConfig(name="router", admin_url=self.router.admin_url, fleet=fleet, options=options))


ROUTERS: dict[str, tuple[type[RouterProcess], type[RouterBench]]] = {
    "sglang": (SglangRouter, SglangBench),
    "vllm": (VllmRouter, VllmBench),
    "haproxy": (Haproxy, HaproxyBench),
}
"""The kinds whose programs are run."""

SMALL: dict[str, tuple[type[SmallRouter], type[SmallBench]]] = {
    "miles": (MilesRouter, MilesBench),
    "lmdeploy": (LmdeployRouter, LmdeployBench),
    "routed-api": (RoutedApi, RoutedApiBench),
    "abacus": (Abacus, AbacusBench),
}
"""The kinds whose programs cannot be run here, and the made-up one of the example."""

IN_MEMORY = {
    "memory-sglang": Capabilities(async_add=True, probes_on_add=True),
    "memory-vllm": Capabilities(tag=False, probes_on_add=True),
    "memory-haproxy": Capabilities(drain=True),
}
"""The router in memory, with the capabilities of each of them."""
