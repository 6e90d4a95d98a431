"""What a seed decides in advance: how large the fleet is and how badly everything around the controller behaves."""

import random

import msgspec

from rollbook.adapters.memory.faults import LogFaults, ProxyFaults


class Weather(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run draws at its beginning."""

    seconds: float
    """How long facts come and faults go on."""
    rollouts: int
    cells: int
    proxies: int
    observer: bool
    """Whether an observer publishes what it sees; only then may a Down be lost."""
    window: float | None
    """The log's memory of ids, in seconds."""
    log: LogFaults
    routers: tuple[ProxyFaults, ...]
    untagged: bool
    """Whether the last router keeps no tags."""
    crashes: float
    """Mean seconds between two ends of a controller; 0 for none."""
    outages: float
    """Mean seconds between two outages of log, provider or a router; 0 for none."""
    operator: float
    """Mean seconds between two decisions about the whole fleet (a hold, a new run); 0 for none."""
    garbage: float
    """Mean seconds between two messages that are no facts; 0 for none."""


def _chance(rng: random.Random, most: float) -> float:
    """Often nothing, otherwise up to `most`."""
    return 0.0 if rng.random() < 0.5 else rng.uniform(0, most)


def draw(rng: random.Random) -> Weather:
    """The weather of one seed: about one in eight is calm, the others have some faults, rarely all."""
    calm = rng.random() < 0.125
    proxies = rng.randint(1, 3)
    log = LogFaults(
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
    routers = tuple(
        ProxyFaults(
            slowest_call=rng.choice([0.0, 0.01, 0.5, 2.5]),
            slowest_job=rng.choice([0.0, 0.05, 2.0]),
            refuse=_chance(rng, 0.2),
            lose_answer=_chance(rng, 0.2),
            act_late=_chance(rng, 0.2),
            latest=3.0,
            lie=_chance(rng, 0.15),
            fail_job=_chance(rng, 0.15),
        )
        for _ in range(proxies)
    )
    untagged = rng.random() < 0.25
    if untagged:
        # Such routers add while the caller waits, and give up when it hangs up: nothing comes late.
        calm_down = {"act_late": 0.0, "slowest_call": 0.01, "slowest_job": 0.0}
        routers = (*routers[:-1], msgspec.structs.replace(routers[-1], **calm_down))
    return Weather(
        seconds=rng.uniform(6, 18),
        rollouts=rng.randint(1, 4),
        cells=rng.choice([0, 0, 1]),
        proxies=proxies,
        observer=rng.random() < 0.4,
        window=rng.choice([None, 120.0, 20.0]),
        log=LogFaults() if calm else log,
        routers=tuple(ProxyFaults() for _ in routers) if calm else routers,
        untagged=untagged,
        crashes=0.0 if calm else rng.choice([0.0, 4.0, 12.0]),
        outages=0.0 if calm else rng.choice([0.0, 5.0, 15.0]),
        operator=rng.choice([0.0, 0.0, 5.0]),
        garbage=rng.choice([0.0, 3.0]),
    )
