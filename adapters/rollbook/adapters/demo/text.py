"""The report for people: lines made of pieces, in colour where the terminal is, plain elsewhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rollbook.adapters.cli.output import Piece
from rollbook.adapters.demo.checks import Check
from rollbook.adapters.demo.report import KillReport, Report

Line = list[Piece]

_COLUMNS: Final = (
    ("killed at", 9),
    ("worker", -13),
    ("life", 4),
    ("url", -5),
    ("down", 8),
    ("deregistered", 12),
    ("registered again", 16),
    ("served again", 12),
)
"""Titles and widths; a negative width is of text that begins at the left."""


def render(report: Report) -> list[Line]:
    """The whole report."""
    return [
        [
            (f"{len(report.kills)} kills among {len(report.workers)} workers", "bold"),
            f" in {report.seconds:.1f} s (seed {report.seed}); after each death, in seconds, until it was",
        ],
        [],
        [(_row(title for title, _ in _COLUMNS), "dim")],
        *([_row(_cells(kill))] for kill in report.kills),
        [],
        *([line] for line in _figures(report)),
        [],
        *(line for check in report.checks for line in _check(check)),
        [],
        _verdict(report),
    ]


def _row(cells: Iterable[str]) -> str:
    row = [
        f"{cell:>{width}}" if width > 0 else f"{cell:<{-width}}"
        for cell, (_, width) in zip(cells, _COLUMNS, strict=True)
    ]
    return "  ".join(row).rstrip()


def _cells(kill: KillReport) -> list[str]:
    url = {True: "same", False: "other", None: "-"}[kill.same_url]
    gone = _seconds(kill.deregistered) if kill.was_registered else "was not in"
    return [
        f"{kill.at:.1f} s",
        kill.worker,
        str(kill.incarnation),
        url,
        _seconds(kill.down),
        gone,
        _seconds(kill.registered),
        _seconds(kill.served),
    ]


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.3f}"


def _figures(report: Report) -> list[str]:
    requests = report.requests
    lines = [
        f"router    killed at {restart.at:.1f} s; it answered again after {restart.answered:.1f} s, with an empty list, "
        f"and served after {_seconds(restart.served)} s"
        for restart in report.restarts
    ]
    lines.append(
        f"requests  {requests.sent} sent ({requests.per_second:.1f}/s), {requests.failed} failed, "
        f"{requests.wrong} served by a wrong or dead incarnation, {requests.early} by a new one before it was registered"
    )
    lines += [f"          {count} failed: {why}" for why, count in requests.failures.items()]
    listed = ", ".join(f"{worker} {life}" for worker, life in sorted(report.registered.items())) or "nobody"
    lines.append(f"router    lists {listed}")
    lines.append(f"log       {report.facts} facts; the replay was compared with the live state at {report.sequence}")
    return lines


def _check(check: Check) -> list[Line]:
    verdict = ("held", "green") if check.held else ("BROKEN", "bold red")
    first: Line = [(f"{verdict[0]:<8}", verdict[1]), f"{check.guards:<4}{check.name} ({check.looked_at})"]
    return [first, *([f"            {line}"] for line in check.broken)]


def _verdict(report: Report) -> Line:
    if report.passed:
        return [("Everything held.", "bold green")]
    count = sum(not check.held for check in report.checks)
    return [(f"{count} of {len(report.checks)} promises were broken.", "bold red")]
