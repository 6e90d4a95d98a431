"""Many seeds in one process, and what came of them: for the tests, and for a million."""

import contextlib
import gc
from collections import Counter
from collections.abc import Iterable, Iterator

import msgspec
from simulation.run import simulate
from simulation.world import Wrong


class Batch(msgspec.Struct):
    """What some seeds did."""

    done: int = 0
    counts: Counter = msgspec.field(default_factory=Counter)
    states: set[int] = msgspec.field(default_factory=set)
    wrong: list[tuple[int, str]] = []
    """Seeds that broke an invariant, with what was said."""


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Leave out of every collection what was there before the first seed: it is most of all objects."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def run(seeds: Iterable[int]) -> Batch:
    """Run them all, whatever is wrong with some."""
    batch = Batch()
    with uncollected():
        for seed in seeds:
            batch.done += 1
            try:
                result = simulate(seed)
            except Wrong as exc:
                batch.wrong.append((seed, str(exc)))
            else:
                batch.counts += result.counts
                batch.states |= result.states
    return batch
