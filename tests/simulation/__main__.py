"""Run seeds by hand: `PYTHONPATH=tests python -m simulation 17` prints the whole trace, `17 40` runs 17 to 39."""

import sys

from simulation.run import simulate


def main(first: str, beyond: str | None = None) -> None:
    if beyond is None:
        result = simulate(int(first))
        sys.stdout.write("\n".join(result.trace) + f"\n{dict(result.counts)}\n{result.digest}\n")
        return
    for seed in range(int(first), int(beyond)):
        simulate(seed)
    sys.stdout.write(f"seeds {first} to {int(beyond) - 1}: all right\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
