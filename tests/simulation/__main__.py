"""Run seeds by hand: `PYTHONPATH=tests python -m simulation 17` prints the whole trace, `17 40` runs 17 to 39.

`--mutations` breaks one guard after the other and prints, as docs/simulation.md shows it, after how many seeds the
simulation finds each.
"""

import sys

from simulation import batch, sabotage
from simulation.run import simulate


def one(seed: int) -> int:
    result = simulate(seed)
    sys.stdout.write("\n".join(result.trace) + f"\n{dict(result.counts)}\n{result.digest}\n")
    return 0


def many(first: int, beyond: int) -> int:
    done = batch.run(range(first, beyond))
    for _, told in done.wrong:
        sys.stdout.write(f"{told}\n\n")
    sys.stdout.write(f"seeds {first} to {beyond - 1}: {len(done.wrong)} wrong, {len(done.states):,} distinct states\n")
    return 1 if done.wrong else 0


def main(*asked: str) -> int:
    if asked == ("--mutations",):
        return sabotage.table()
    return one(int(asked[0])) if len(asked) == 1 else many(int(asked[0]), int(asked[1]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
