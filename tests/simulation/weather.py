"""What a seed decides in advance: how large the fleet is and how badly everything around the controller behaves."""

import math
import random

import msgspec
from simulation.keeping import Keeping
from simulation.kinds import KINDS, temper

from rollbook.adapters.memory.faults import LogFaults, ProxyFaults
from rollbook.projections.policy import Stale


class RouterWeather(msgspec.Struct, frozen=True, kw_only=True):
    """One router and what its policy says."""

    kind: str = "sglang"
    faults: ProxyFaults = ProxyFaults()
    exclusive: bool = False
    budget: float = 0.5


class Weather(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run draws at its beginning. The default is a calm day with one controller."""

    seconds: float = 0.0
    """How long facts come and faults go on."""
    rollouts: int = 3
    cells: int = 0
    routers: tuple[RouterWeather, ...] = (RouterWeather(),)
    observer: bool = False
    """Whether an observer publishes what it sees; only then may a Down be lost."""
    identities: bool = False
    """Whether workers can tell who they are."""
    window: float | None = None
    """The log's memory of ids, in seconds."""
    log: LogFaults = LogFaults()
    writers: int = 1
    """Controllers that run at a time: one leads, the others stand by."""
    lease: float = math.inf
    """Seconds that a claim to lead lasts if it is not renewed; for ever in fleets where it is given back by hand."""
    crashes: float = 0.0
    """Mean seconds between two ends of a controller; 0 for none."""
    pauses: float = 0.0
    """Mean seconds between two times at which a controller is stopped and goes on later; 0 for none."""
    outages: float = 0.0
    """Mean seconds between two outages of log, provider or a router; 0 for none."""
    operator: float = 0.0
    """Mean seconds between two decisions about the whole fleet (a hold, a new run, its end); 0 for none."""
    blackouts: float = 0.0
    """Mean seconds between two times at which everybody is thought to be dead; 0 for none."""
    strangers: float = 8.0
    """Mean seconds between two acts of others at the routers, and at the workers' ports; 0 for none."""
    garbage: float = 0.0
    """Mean seconds between two messages that are no facts; 0 for none."""
    ranks: int = 2
    """Workers of a cell of several."""
    stale: Stale = "keep"
    """What becomes of registered workers whose weights are not good enough any more, in every pool."""
    lag: int = 0
    """By how much a version may be lower than the published one."""
    paired: bool = False
    """Whether the pools of cells and of single workers are a pair, and every router that serves one serves both."""
    keeping: Keeping | None = None
    """Cells that are watched and restarted besides, and who does that."""


def _chance(rng: random.Random, most: float) -> float:
    """Often nothing, otherwise up to `most`."""
    return 0.0 if rng.random() < 0.5 else rng.uniform(0, most)


def draw(rng: random.Random) -> Weather:
    """The weather of one seed: about one in eight is calm, the others have some faults, rarely all."""
    calm = rng.random() < 0.125
    return Weather(
        seconds=rng.uniform(6, 18),
        rollouts=rng.randint(1, 4),
        cells=rng.choice([0, 0, 1]),
        routers=tuple(_router(rng, calm=calm) for _ in range(rng.choice([1, 2, 2, 3, 4]))),
        observer=rng.random() < 0.4,
        identities=rng.random() < 0.5,
        window=rng.choice([None, 120.0, 20.0]),
        log=LogFaults() if calm else _log(rng),
        writers=rng.choice([1, 2, 2, 3]),
        lease=rng.choice([math.inf, 5.0, 5.0, 8.0]),
        crashes=0.0 if calm else rng.choice([0.0, 4.0, 12.0]),
        pauses=0.0 if calm else rng.choice([0.0, 5.0, 12.0]),
        outages=0.0 if calm else rng.choice([0.0, 5.0, 15.0]),
        operator=rng.choice([0.0, 5.0]),
        blackouts=rng.choice([0.0, 0.0, 8.0]),
        garbage=rng.choice([0.0, 3.0]),
        ranks=rng.choice([2, 2, 3]),
        stale=rng.choice(["keep", "replace", "remove"]),
        lag=rng.choice([0, 0, 2]),
        paired=rng.random() < 0.4,
    )


def _log(rng: random.Random) -> LogFaults:
    return LogFaults(
        slowest_append=rng.choice([0.0, 0.005, 0.2]),
        slowest_delivery=rng.choice([0.0, 0.005, 0.3]),
        refuse=_chance(rng, 0.1),
        lose_answer=_chance(rng, 0.15),
        store_late=_chance(rng, 0.1),
        latest=3.0,
        drop_batch=_chance(rng, 0.15),
        end_reading=_chance(rng, 0.05),
        heartbeat=1.0,
        most_in_a_batch=rng.choice([1, 4, 64]),
    )


def _router(rng: random.Random, *, calm: bool) -> RouterWeather:
    kind = rng.choices(list(KINDS), [each.weight for each in KINDS.values()])[0]
    faults = ProxyFaults(
        slowest_call=rng.choice([0.0, 0.01, 0.5, 2.5]),
        slowest_job=rng.choice([0.0, 0.05, 2.0]),
        refuse=_chance(rng, 0.2),
        lose_answer=_chance(rng, 0.2),
        act_late=_chance(rng, 0.2),
        latest=3.0,
        lie=_chance(rng, 0.15),
        fail_job=_chance(rng, 0.15),
        longest_request=rng.choice([0.0, 0.5, 6.0]),
    )
    return RouterWeather(
        kind=kind,
        faults=ProxyFaults(longest_request=faults.longest_request) if calm else temper(kind, faults),
        exclusive=rng.random() < 0.15,
        budget=rng.choice([0.0, 0.34, 0.5, 0.5, 1.0]),
    )
