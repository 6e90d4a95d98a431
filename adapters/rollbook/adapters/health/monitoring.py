"""The monitor as one runs it: connected to the log, as an asyncio task or on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from types import TracebackType
from typing import Any, Final, Protocol, Self

import structlog

from rollbook.adapters.clock import SystemClock
from rollbook.adapters.health.calling import called
from rollbook.adapters.health.heartbeats import beating
from rollbook.adapters.health.http import HttpProbes
from rollbook.adapters.ids import UuidV7
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.snapshots import kept_state
from rollbook.events import Codec, RollbookError, validate_name
from rollbook.projections.ending import end
from rollbook.projections.health.monitor import Check, Monitor, MonitorStats, Subject, watched_pool
from rollbook.projections.health.verdicts import Verdicts
from rollbook.projections.log.projector import Projector
from rollbook.projections.policy import PoolPolicy
from rollbook.projections.ports import WorkerProvider

_log = structlog.get_logger("rollbook")
_BAD: Final = frozenset({"monitor.unknown", "monitor.verdict_failed"})
_STOP_SECONDS: Final = 30.0


class MonitorMisconfigured(RollbookError):
    """There is nothing that this monitor could watch, or not in the way that was asked for."""


class HealthMonitor:
    """Watches the workers of one fleet, as `pools` say (their `health`), and publishes what it finds.

    `connection` is a `Connection` or a URL. `checks` stands in for the configured probe of a pool: a function of the
    `Subject`, see `called`. `provider` is asked where the workers are, on the loop that runs the monitor. `name` says
    who watches, in the log; by default `monitor-<host>-<pid>`. `namespace` is that of the actors, for `probe = "ray"`.
    Raises `InvalidName` or `MonitorMisconfigured`.
    """

    def __init__(
        self,
        fleet: str,
        connection: Connection | str,
        provider: WorkerProvider,
        pools: Mapping[str, PoolPolicy],
        *,
        checks: Mapping[str, Callable[[Subject], Any]] | None = None,
        name: str | None = None,
        namespace: str | None = None,
    ) -> None:
        self.fleet = validate_name("fleet", fleet)
        self.name = validate_name("observer", name or monitor_name())
        self._connection = Connection(url=connection) if isinstance(connection, str) else connection
        self._provider = provider
        self._checks = dict(checks or {})
        strangers = sorted(self._checks.keys() - pools.keys())
        if strangers:
            raise MonitorMisconfigured(f"there is a check for pool {strangers[0]!r}, which is not among the pools")
        self._pools = {pool: policy for pool, policy in pools.items() if policy.health.probe != "off"}
        if not self._pools:
            raise MonitorMisconfigured("no pool is to be watched; declare one whose health.probe is not 'off'")
        if idle := sorted(self._checks.keys() - self._pools.keys()):
            raise MonitorMisconfigured(f"there is a check for pool {idle[0]!r}, whose health.probe is 'off'")
        self._namespace = namespace
        self._monitor: Monitor | None = None

    @property
    def stats(self) -> MonitorStats:
        """Counts since `run` began."""
        return MonitorStats() if self._monitor is None else self._monitor.stats

    @property
    def watching(self) -> int:
        """How many workers are asked now."""
        return 0 if self._monitor is None else self._monitor.watching

    async def run(self) -> None:
        """Watch until cancelled. Outages of NATS, the provider and the workers end nothing.

        Raises `LogError` if the log cannot be reached at the start, has no stream of this fleet, or cannot be folded.
        """
        async with self._opened() as monitor:
            self._monitor = monitor
            await monitor.run()

    @contextlib.asynccontextmanager
    async def _opened(self) -> AsyncGenerator[Monitor]:
        clock = SystemClock()
        async with contextlib.AsyncExitStack() as stack:
            client = await connect(self._connection, name=self.name)
            stack.push_async_callback(client.close)
            log = JetStreamLog(client, self.fleet, direct=True)
            state = await kept_state(client, self.fleet, log, _tell)
            http = HttpProbes()
            stack.push_async_callback(http.close)
            await stack.enter_async_context(beating(client, self.fleet, self.name, list(self._pools)))
            yield Monitor(
                {pool: watched_pool(policy, self._check(pool, policy, http)) for pool, policy in self._pools.items()},
                projector=Projector(log, Codec(self.fleet), clock, state),
                verdicts=Verdicts(self.fleet, log, clock, UuidV7(), self.name),
                provider=self._provider,
                clock=clock,
                rng=random.Random(),  # noqa: S311 - jitter, not secrets
                tell=_tell,
            )

    def _check(self, pool: str, policy: PoolPolicy, http: HttpProbes) -> Check:
        function = self._checks.get(pool)
        if function is not None:
            return called(function)
        if policy.health.probe == "ray":
            from rollbook.adapters.health.ray import RayCheck

            return RayCheck(policy.health, self._namespace)
        return http.check(policy.health, policy.model)


class MonitorThread:
    """Runs a `HealthMonitor` on a thread with a loop of its own, for code that is not asyncio.

    Usable as a context manager. The thread does not keep the process from exiting. What ends the monitor before `stop`
    is logged, and raised by `stop`.
    """

    def __init__(self, monitor: HealthMonitor) -> None:
        self.monitor = monitor
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="rollbook-monitor", daemon=True)

    def start(self) -> Self:
        """Begin to watch; returns at once."""
        self._thread.start()
        return self

    @property
    def running(self) -> bool:
        """Whether it watches."""
        return self._thread.is_alive()

    def stop(self, timeout: float = _STOP_SECONDS) -> None:
        """End it, and wait for that. Raises what ended it before, or `TimeoutError` after `timeout` seconds."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has ended already
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"the monitor did not end within {timeout:g} s")
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(run_until(self.monitor, self._stopping))
        except Exception as exc:  # noqa: BLE001 - raised by `stop`
            self._failure = exc
            _log.error("monitor.ended", reason=str(exc))


class Runs(Protocol):
    """What goes on until it is cancelled."""

    async def run(self) -> None:
        """Raises what ends it before."""
        ...


async def run_until(what: Runs, stopping: asyncio.Event) -> None:
    """Run it until `stopping` is set. Raises what ended it before."""
    watching = asyncio.create_task(what.run(), name="watching")
    asked = asyncio.create_task(stopping.wait(), name="stop")
    try:
        await asyncio.wait([watching, asked], return_when=asyncio.FIRST_COMPLETED)
        if watching.done():
            watching.result()
    finally:
        await end(watching, asked)


def monitor_name(what: str = "monitor") -> str:
    """Who watches, if nobody says: `monitor-<host>-<pid>`, in letters that a name may have."""
    host = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:80]
    return f"{what}-{host}-{os.getpid()}"


def _tell(event: str, /, **keys: object) -> None:
    bad = event in _BAD or keys.get("verdict") == "WorkerDown"
    (_log.warning if bad else _log.info)(event, **keys)
