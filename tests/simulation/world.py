"""A whole fleet on virtual time: log, routers, provider, workers, publishers, and the real controller among them.

Everything random is drawn from generators that are named after the seed, so a seed is a schedule. `simulate(seed)` runs
one: facts and faults for a while, then quiet, then it must all come right.
"""

import asyncio
import contextvars
import random
from collections import Counter, deque
from collections.abc import Callable

import msgspec
from simulation.fleet import Fleet
from simulation.weather import Weather, draw
from simulation.witness import Witness

from rollbook.adapters.memory import virtual
from rollbook.adapters.memory.clock import LoopClock
from rollbook.adapters.memory.faults import NO_FAULTS, LogFaults
from rollbook.adapters.memory.ids import SeededIds
from rollbook.adapters.memory.leadership import MemoryLeadership, Seat
from rollbook.adapters.memory.log import MemoryLog
from rollbook.adapters.memory.provider import MemoryProvider
from rollbook.adapters.memory.proxy import AS_SGLANG, MemoryProxy
from rollbook.adapters.memory.readiness import MemoryReadiness
from rollbook.adapters.memory.snapshots import MemorySnapshots
from rollbook.projections.authority import Deposed, LeadershipLost
from rollbook.projections.controller import Controller
from rollbook.projections.policy import Policy, PoolPolicy, ProxyPolicy, ReconcilePolicy
from rollbook.projections.ports import AlreadyLed, LogUnavailable
from rollbook.projections.projector import LogRewound
from rollbook.projections.resources import Resources

FLEET = "math-rl"
POOLS = {"rollout": PoolPolicy(), "decode": PoolPolicy(), "reward": PoolPolicy(deregister_suspended=False)}
PACES = ReconcilePolicy(
    resync=4.0, call_deadline=2.0, confirm_deadline=4.0, backoff_first=0.2, backoff_most=3.0, removals_in_flight=2
)
SETTLE_SECONDS = 90.0
"""Virtual seconds within which all must be right once facts and faults have stopped."""
QUIET_SECONDS = 10.0
"""Virtual seconds of nothing that must follow."""
RESTART_SECONDS = 0.2
"""Before a controller that ended is started again."""
TRACE_LINES = 20_000


ENDINGS = (AlreadyLed, Deposed, LeadershipLost, LogUnavailable, LogRewound)
"""What may end a controller; the last one only where a log loses its tail."""


class Wrong(AssertionError):
    """An invariant was broken."""


class Running:
    """One controller process."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.owner = f"controller-{number}"
        self.controller: Controller | None = None
        self.process: virtual.Process | None = None
        self.task: asyncio.Task | None = None

    def __str__(self) -> str:
        return f"controller {self.number}"


current: contextvars.ContextVar[Running | None] = contextvars.ContextVar("current", default=None)
"""The controller process in which a line of code runs."""


class WatchedProvider(MemoryProvider):
    """Notes every answer, so that an add can be held against the look-up before it [I6]."""

    def __init__(self, clock: LoopClock, world: "World") -> None:
        super().__init__(clock)
        self._world = world

    async def locate(self, names):
        answer = await super().locate(names)
        for name, located in answer.items():
            self._world.witness.located(current.get(), name, located)
        return answer


class WatchedReadiness(MemoryReadiness):
    """As the provider's."""

    def __init__(self, clock: LoopClock, world: "World") -> None:
        super().__init__(clock)
        self._world = world

    async def check(self, url, path, identity=None):
        answer = await super().check(url, path, identity)
        self._world.witness.probed(url, answer)
        return answer


class World:
    """Build it inside a running loop."""

    def __init__(self, seed: int | str, weather: Weather | None = None) -> None:
        self.seed = seed
        self.loop = asyncio.get_running_loop()
        self.context = contextvars.copy_context()
        """Of the world itself, outside every controller process."""
        self.weather = draw(self.rng("weather")) if weather is None else weather
        self.clock = LoopClock()
        self.trace: deque[str] = deque(maxlen=TRACE_LINES)
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.stopping = False
        self.log = MemoryLog(self.clock, self.rng("log"), window=self.weather.window, faults=self.weather.log)
        self.provider = WatchedProvider(self.clock, self)
        self.readiness = WatchedReadiness(self.clock, self)
        self.snapshots = MemorySnapshots()
        self.seat = Seat(FLEET)
        self.answering: set[str] = set()
        """URLs at which a worker listens."""
        self.policy = self._policy()
        self.routers = {name: self._router(number, name) for number, name in enumerate(self.policy.proxies)}
        self.running: list[Running] = []
        self.witness = Witness(self)
        self.fleet = Fleet(self)
        self.at_line: tuple[int, Callable[[], None]] | None = None
        self._lines = 0
        self._started = 0

    def rng(self, name: str) -> random.Random:
        """A generator of its own for each purpose, so that one's draws do not shift another's."""
        return random.Random(f"{self.seed}/{name}")

    def _policy(self) -> Policy:
        rng = self.rng("policy")
        proxies = {}
        for number in range(self.weather.proxies):
            name = f"router-{number}"
            pools = tuple(POOLS) if number == 0 else tuple(pool for pool in POOLS if rng.random() < 0.7)
            proxies[name] = ProxyPolicy(name=name, pools=pools or ("rollout",))
        return Policy(fleet=FLEET, pools=POOLS, proxies=proxies, reconcile=PACES)

    def _router(self, number: int, name: str) -> MemoryProxy:
        tagged = not (self.weather.untagged and number == self.weather.proxies - 1)
        router = MemoryProxy(
            name,
            FLEET,
            self.clock,
            self.rng(name),
            faults=self.weather.routers[number],
            capabilities=msgspec.structs.replace(AS_SGLANG, tag=tagged, async_add=tagged),
            answers=self.answering.__contains__,
            patience=6.0 if tagged else 0.0,
        )
        router.on_call = lambda verb, what: self.witness.called(router, current.get(), verb, what)
        router.on_effect = lambda effect, entry: self.witness.changed(router, effect, entry)
        return router

    def note(self, text: str) -> None:
        """One line of the trace. Whatever waits for the next few lines is told."""
        self.trace.append(f"{self.loop.time():10.4f}  {text}")
        self._lines += 1
        if self.at_line is not None and self._lines >= self.at_line[0]:
            _, act = self.at_line
            self.at_line = None
            act()

    def after_lines(self, lines: int, act: Callable[[], None]) -> None:
        """Do `act` at the moment at which so many more lines have been noted: in the middle of what is going on."""
        self.at_line = (self._lines + lines, act)

    def wrong(self, text: str) -> None:
        """An invariant is broken: the run ends with it."""
        self.note(f"WRONG {text}")
        self.problems.append(f"at {self.loop.time():.4f} s: {text}")

    # -------------------------------------------------------------- controllers

    def start(self) -> Running:
        """A new controller process, which knows only what log, snapshots and routers hold."""
        self._started += 1
        number = self._started
        running = Running(number)

        def tell(event, /, **keys):
            self.note(f"c{number} {event} " + " ".join(f"{key}={value}" for key, value in keys.items()))

        resources = Resources(
            log=self.log,
            snapshots=self.snapshots,
            leadership=MemoryLeadership(self.seat, self.clock),
            provider=self.provider,
            readiness=self.readiness,
            clock=self.clock,
            ids=SeededIds(self.rng(f"ids/{number}")),
            rng=self.rng(f"jitter/{number}"),
            owner=running.owner,
            tell=tell,
        )
        running.controller = Controller(self.policy, resources, list(self.routers.values()), standby=False)

        async def main():
            current.set(running)
            await running.controller.run()

        running.process, running.task = self.loop.spawn(str(running), main())
        self.running.append(running)
        self.note(f"{running} starts")
        return running

    def kill(self, running: Running) -> None:
        """End a controller between two steps: nothing of it runs any more."""
        if running.task.done():
            return
        running.process.kill()
        self.running.remove(running)
        self.counts["kills"] += 1
        self.note(f"{running} is killed")
        if self.seat.owner == running.owner:
            self.seat.vacate("killed")

    def reap(self) -> bool:
        """Look at controllers that ended by themselves; only what can happen may have ended them."""
        ended = [running for running in self.running if running.task.done()]
        for running in ended:
            self.running.remove(running)
            if running.task.cancelled():
                continue
            error = running.task.exception()
            self.note(f"{running} ended: {error!r}")
            self.counts[f"ended by {type(error).__name__}"] += 1
            if error is not None and not isinstance(error, ENDINGS):
                self.wrong(f"{running} ended by {error!r}")
        return bool(ended)

    async def supervise(self) -> None:
        """Keep a controller running, as systemd does."""
        while True:
            if self.reap():
                await asyncio.sleep(RESTART_SECONDS)
            if not self.running:
                self.start()
            await asyncio.wait([running.task for running in self.running], timeout=0.5)
            if self.problems:
                return

    @property
    def leader(self) -> Running | None:
        """The controller that runs its lanes and owns the seat."""
        for running in self.running:
            if running.controller.started.is_set() and self.seat.owner == running.owner:
                return running
        return None

    def calm(self) -> None:
        """All faults and outages end."""
        self.log.faults = LogFaults()
        self.log.available = True
        self.provider.available = True
        self.provider.seconds = 0.0
        self.readiness.seconds = 0.0
        for router in self.routers.values():
            router.faults = NO_FAULTS
            router.available = True
            router.stalled = False
        self.note("facts and faults have stopped")
