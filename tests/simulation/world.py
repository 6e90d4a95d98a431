"""A whole fleet on virtual time: log, routers, provider, workers, publishers, and the real controllers among them.

Everything random is drawn from generators that are named after the seed, so a seed is a schedule. `simulate(seed)` runs
one: facts and faults for a while, then quiet, then it must all come right.
"""

import asyncio
import contextvars
import random
from collections import Counter, deque
from collections.abc import Callable

import msgspec
from simulation import keeping
from simulation.controllers import Controllers
from simulation.fleet import Fleet
from simulation.kept import Kept
from simulation.kinds import KINDS
from simulation.states import States
from simulation.verdict import Verdict
from simulation.watched import WatchedLog, WatchedProvider, WatchedReadiness, current
from simulation.weather import RouterWeather, Weather, draw
from simulation.witness import Witness

from rollbook.adapters.memory.clock import LoopClock
from rollbook.adapters.memory.faults import NO_FAULTS, LogFaults
from rollbook.adapters.memory.leadership import Seat
from rollbook.adapters.memory.proxy import MemoryProxy
from rollbook.adapters.memory.snapshots import MemorySnapshots
from rollbook.projections.policy import Policy, PoolPolicy, ProxyPolicy, ReconcilePolicy

FLEET = "math-rl"
POOLS = ("rollout", "decode", "reward")
PACES = ReconcilePolicy(
    resync=4.0, call_deadline=2.0, confirm_deadline=4.0, backoff_first=0.2, backoff_most=3.0, removals_in_flight=2
)
DRAIN_SECONDS = 3.0
TRACE_LINES = 20_000


class Wrong(AssertionError):
    """An invariant was broken."""


class World:
    """Build it inside a running loop."""

    def __init__(self, seed: int | str, weather: Weather | None = None) -> None:
        self.seed = seed
        self.loop = asyncio.get_running_loop()
        self.context = contextvars.copy_context()
        """Of the world itself, outside every controller process."""
        self.weather = self._draw() if weather is None else weather
        self.clock = LoopClock()
        self.trace: deque[str] = deque(maxlen=TRACE_LINES)
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.stopping = False
        self.log = WatchedLog(self)
        self.provider = WatchedProvider(self)
        self.readiness = WatchedReadiness(self.clock, self)
        self.snapshots = MemorySnapshots()
        self.seat = Seat(FLEET, self.weather.lease)
        self.answering: set[str] = set()
        """URLs at which a worker listens."""
        self.kinds = {f"router-{number}": router.kind for number, router in enumerate(self.weather.routers)}
        self.policy = self._policy()
        self.routers = {
            name: self._router(name, router) for name, router in zip(self.kinds, self.weather.routers, strict=True)
        }
        self.controllers = Controllers(self)
        self.witness = Witness(self)
        self.verdict = Verdict(self)
        self.states = States(self)
        self.fleet = Fleet(self)
        self.kept = None if self.weather.keeping is None else Kept(self)
        self._at_line: tuple[int, Callable[[], None]] | None = None
        self._lines = 0

    def rng(self, name: str) -> random.Random:
        """A generator of its own for each purpose, so that one's draws do not shift another's."""
        return random.Random(f"{self.seed}/{name}")

    def _draw(self) -> Weather:
        """That of the seed. Who has cells to watch has less of the rest."""
        weather = draw(self.rng("weather"))
        calm = not weather.crashes + weather.pauses + weather.outages
        kept = keeping.draw(self.rng("keeping"), calm=calm, identities=weather.identities)
        if kept is None:
            return weather
        rollouts = min(weather.rollouts, keeping.ROUTERS)
        routers = weather.routers[: keeping.ROUTERS]
        return msgspec.structs.replace(weather, rollouts=rollouts, cells=0, routers=routers, keeping=kept)

    def _policy(self) -> Policy:
        rng = self.rng("policy")
        proxies = {}
        paired = self.weather.paired and self.weather.cells > 0
        for number, (name, router) in enumerate(zip(self.kinds, self.weather.routers, strict=True)):
            pools = POOLS if number == 0 else tuple(pool for pool in POOLS if rng.random() < 0.7)
            if paired and {"rollout", "decode"} & set(pools):
                pools = tuple(dict.fromkeys([*pools, "rollout", "decode"]))
            proxies[name] = ProxyPolicy(
                name=name,
                pools=pools or ("rollout",),
                exclusive=router.exclusive,
                removal_budget=router.budget,
                drain_deadline=DRAIN_SECONDS,
            )
        weights = {"stale": self.weather.stale, "max_lag": self.weather.lag}
        pools = {
            "rollout": PoolPolicy(paired_with="decode" if paired else None, **weights),
            "decode": PoolPolicy(**weights),
            "reward": PoolPolicy(deregister_suspended=False, **weights),
        }
        if self.weather.keeping is not None:
            pools[keeping.POOL] = self.weather.keeping.pool
            for name, proxy in proxies.items():
                if name == "router-0" or rng.random() < 0.7:
                    proxies[name] = msgspec.structs.replace(proxy, pools=(*proxy.pools, keeping.POOL))
        return Policy(fleet=FLEET, pools=pools, proxies=proxies, reconcile=PACES)

    def _router(self, name: str, weather: RouterWeather) -> MemoryProxy:
        kind = KINDS[weather.kind]
        router = MemoryProxy(
            name,
            FLEET,
            self.clock,
            self.rng(name),
            faults=weather.faults,
            capabilities=kind.capabilities,
            answers=self.answering.__contains__,
            patience=kind.patience,
        )
        router.on_call = lambda verb, what: self.witness.called(router, current.get(), verb, what)
        requests = self.rng(f"requests/{name}")

        def changed(effect, entry):
            self.witness.changed(router, effect, entry)
            if effect == "listed" and kind.capabilities.drain:
                router.load(entry, requests.randint(0, 2))

        router.on_effect = changed
        return router

    def note(self, text: str) -> None:
        """One line of the trace. Whatever waits for the next few lines is told."""
        self.trace.append(f"{self.loop.time():10.4f}  {text}")
        self._lines += 1
        if self._at_line is not None and self._lines >= self._at_line[0]:
            _, act = self._at_line
            self._at_line = None
            act()

    def after_lines(self, lines: int, act: Callable[[], None]) -> None:
        """Do `act` at the moment at which so many more lines have been noted: in the middle of what is going on."""
        self._at_line = (self._lines + lines, act)

    def wrong(self, text: str) -> None:
        """An invariant is broken: the run ends with it."""
        self.note(f"WRONG {text}")
        self.problems.append(f"at {self.loop.time():.4f} s: {text}")

    def calm(self) -> None:
        """All faults and outages end."""
        self._at_line = None
        self.log.faults = LogFaults()
        self.log.available = True
        self.seat.available = True
        self.provider.available = True
        self.provider.seconds = 0.0
        self.readiness.seconds = 0.0
        if self.kept is not None:
            self.kept.deaf(deaf=False)
        for router in self.routers.values():
            router.faults = NO_FAULTS
            router.available = True
            router.stalled = False
        self.fleet.chase_squatters()
        self.note("facts and faults have stopped")
