"""The weather of the cells that are watched and restarted: what a seed decides about them in advance.

Drawn from a generator of its own, so that a schedule without them is what it would be if they did not exist.
"""

import random

import msgspec

from rollbook.projections.policy import HealthPolicy, PoolPolicy, RecoveryPolicy
from rollbook.projections.recovery.due import shortest_window

POOL = "kept"
SHARE = 0.2
"""Of the seeds: a monitor looks at its workers several times a second, and virtual time does not make that cheaper."""
ROUTERS = 2
"""At most, and as many single workers: such a schedule is to take about as long as the others."""


class Keeping(msgspec.Struct, frozen=True, kw_only=True):
    """The cells, who watches and restarts them, and what goes wrong with all of these. Times are mean seconds."""

    cells: tuple[int, ...] = (1, 2)
    """Workers of each."""
    monitors: int = 1
    recoverers: int = 1
    pool: PoolPolicy = PoolPolicy(require_weights=False)
    deaths: float = 4.0
    """Between two ends of a process."""
    hangs: float = 0.0
    """Between two times at which a worker hangs, for a while or until it is killed; 0 for none."""
    naps: float = 0.0
    """Between two times at which a worker is put to sleep; 0 for none."""
    kills: float = 0.0
    """Between two ends of a monitor or recoverer; 0 for none."""
    pauses: float = 0.0
    """Between two times at which one of them is stopped and goes on later; 0 for none."""
    blind: float = 0.0
    """Between two times at which monitors have no network; 0 for none."""
    manager_ends: float = 0.0
    """Between two ends of the workers' manager; 0 for none."""
    unable: float = 0.0
    """Chance that a process cannot be started."""
    stuck: float = 0.0
    """Chance that a start hangs for longer than a claim lasts."""
    half: float = 0.0
    """Chance that the manager dies between the processes of a start."""
    doomed: float = 0.0
    """Chance that a process dies while it starts."""
    lost_answers: float = 0.0
    """Chance that the manager does what it is asked for, and nobody hears so."""
    unnoticed: float = 0.0
    """Chance that the manager does not notice the death of a process; 0 where workers cannot tell who they are, since
    whoever listens there later is then taken for it, for ever."""
    slow_probes: float = 0.0
    """Chance that a probe's answer is late, or too late; it tells of the moment at which the probe began."""
    lease: float | None = None
    """Seconds within which every other life promises to be heard of."""


def draw(rng: random.Random, *, calm: bool, identities: bool) -> Keeping | None:
    """Most seeds have none."""
    if rng.random() >= SHARE:
        return None

    def mean(*some: float) -> float:
        return 0.0 if calm else rng.choice(some)

    def chance(most: float) -> float:
        return 0.0 if calm or rng.random() < 0.5 else rng.uniform(0, most)

    return Keeping(
        cells=tuple(rng.choice([1, 1, 2, 2, 3]) for _ in range(rng.choice([1, 2, 2, 3]))),
        monitors=rng.choice([1, 2]),
        recoverers=rng.choice([1, 2, 2]),
        pool=_pool(rng),
        deaths=rng.choice([2.0, 4.0, 8.0]),
        hangs=rng.choice([0.0, 3.0, 6.0]),
        naps=rng.choice([0.0, 3.0, 6.0]),
        kills=mean(0.0, 3.0, 8.0),
        pauses=mean(0.0, 4.0, 10.0),
        blind=mean(0.0, 0.0, 6.0),
        manager_ends=mean(0.0, 0.0, 8.0),
        unable=chance(0.3),
        stuck=chance(0.2),
        half=chance(0.2),
        doomed=chance(0.4),
        lost_answers=chance(0.2),
        unnoticed=rng.uniform(0, 0.7) if identities else 0.0,
        slow_probes=chance(0.3),
        lease=rng.choice([None, 2.0, 4.0]),
    )


def _pool(rng: random.Random) -> PoolPolicy:
    """Paces at which a schedule sees several lives of a cell, and what becomes of it."""
    recovery = RecoveryPolicy(
        attempts=rng.choice([2, 2, 3, 4]),
        backoff_first=rng.choice([0.3, 1.0]),
        backoff_most=3.0,
        parallel=rng.choice([1, 1, 2]),
        claim=rng.choice([2.0, 2.5, 4.0]),
    )
    window = shortest_window(recovery) + rng.choice([0.0, 6.0])
    return PoolPolicy(
        require_weights=False,
        deregister_suspended=rng.random() < 0.7,
        health=HealthPolicy(
            interval=0.7,
            jitter=0.2,
            timeout=0.8,
            dead_threshold=2,
            slow_threshold=rng.choice([1, 2]),
            busy_threshold=4,
            unhealthy_threshold=2,
            success_threshold=rng.choice([1, 2]),
            first_wait=4.0,
            parallel=rng.choice([2, 8]),
            every_rank=rng.random() < 0.5,
        ),
        recovery=msgspec.structs.replace(recovery, window=window),
    )
