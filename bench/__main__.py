"""`make bench`: run the benchmarks, write `bench/results.json`, print a table. Names as arguments choose some."""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import structlog
from rich.console import Console
from rich.table import Table

from bench import (
    isolation,
    latency,
    mass_return,
    monitor,
    planning,
    publish,
    removal,
    replay,
    rotation,
    stall,
    start_up,
    takeover,
)
from bench.figures import Figure
from rollbook.adapters import logs
from rollbook.adapters.cli.common import run

BENCHMARKS: dict[str, Callable[[], Awaitable[list[Figure]]]] = {
    "publish": publish.measure,
    "latency": latency.measure,
    "removal": removal.measure,
    "rotation": rotation.measure,
    "isolation": isolation.measure,
    "mass_return": mass_return.measure,
    "planning": planning.measure,
    "takeover": takeover.measure,
    "replay": replay.measure,
    "stall": stall.measure,
    "start_up": start_up.measure,
    "monitor": monitor.measure,
}
WHEN_NAMED = ("start_up",)
"""They take minutes: two million facts are written, and read twice."""
RESULTS = Path(__file__).parent / "results.json"


def main(names: list[str]) -> int:
    """Run the named benchmarks, by default all but those that must be named.

    Return 1 if a target was missed, 64 for a name that there is not.
    """
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"bench: there is no {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 64
    logs.configure(environ={}, level="error")
    logging.getLogger("aiohttp.server").disabled = True  # the router greets workers in HTTP/2 first
    figures: list[Figure] = []
    for name in names or [name for name in BENCHMARKS if name not in WHEN_NAMED]:
        print(f"bench: {name} ...", file=sys.stderr, flush=True)
        figures += run(_measure(name))
    if not names:
        RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=2) + b"\n")
    table = Table("what", "value", "target", "", "how")
    for figure in figures:
        sign = "≤" if figure.better == "lower" else "≥"
        verdict = "[green]yes[/]" if figure.reached else "[bold red]NO[/]"
        value = f"{figure.value:.2f} {figure.unit}"
        table.add_row(figure.name, value, f"{sign} {figure.target:g}", verdict, figure.note)
    Console().print(table)
    return 0 if all(figure.reached for figure in figures) else 1


async def _measure(name: str) -> list[Figure]:
    structlog.contextvars.bind_contextvars(bench=name)
    return await BENCHMARKS[name]()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
