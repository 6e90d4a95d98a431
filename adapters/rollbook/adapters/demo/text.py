"""The report for people: lines made of pieces, in colour where the terminal is, plain elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rollbook.adapters.cli.output import Piece
from rollbook.adapters.demo.promise import Check
from rollbook.adapters.demo.report import DisturbanceReport, KillReport, Report

Line = Sequence[Piece]

_COLUMNS: Final = (
    ("at", 8),
    ("how", -12),
    ("worker", -13),
    ("life", 4),
    ("url", -5),
    ("down", 8),
    ("deregistered", 12),
    ("registered again", 16),
    ("served again", 12),
)
"""Titles and widths; a negative width is of text that begins at the left."""

_PARTS: Final = (
    ("at", 8),
    ("what", -16),
    ("which", -17),
    ("back after", 10),
    ("request served", 14),
    ("fact stored", 11),
    ("failed", 6),
)


def render(report: Report) -> list[Line]:
    """The whole report."""
    kills = f"{len(report.kills)} kills among {len(report.workers)} workers"
    told = f" in {report.seconds:.1f} s, seed {report.seed}. Seconds from each death until the worker was:"
    lines: list[Line] = [[(kills, "bold"), told], [], [(_row(_COLUMNS), "dim")]]
    lines.extend([_row(_COLUMNS, _cells(kill))] for kill in report.kills)
    lines += _parts(report)
    lines += [[], *_figures(report), []]
    for check in report.checks:
        lines += _check(check)
    return [*lines, [], _verdict(report)]


def _parts(report: Report) -> list[Line]:
    """What was done to the other parts, and what it cost."""
    if not report.disturbances:
        return []
    told = f"{len(report.disturbances)} other faults."
    return [
        [],
        [(told, "bold"), " Seconds from each until it was back, a request was served, a fact was stored; and how many"],
        ["requests failed while it was not back:"],
        [],
        [(_row(_PARTS), "dim")],
        *([_row(_PARTS, _part(one))] for one in report.disturbances),
    ]


def _row(columns: Sequence[tuple[str, int]], cells: Iterable[str] | None = None) -> str:
    """A row of `cells`, or of the titles."""
    row = [
        f"{cell:>{width}}" if width > 0 else f"{cell:<{-width}}"
        for cell, (_, width) in zip(cells or [title for title, _ in columns], columns, strict=True)
    ]
    return "  ".join(row).rstrip()


def _part(one: DisturbanceReport) -> list[str]:
    return [
        f"{one.at:.1f} s",
        one.what,
        one.whom,
        _seconds(one.back),
        _seconds(one.served),
        "-" if one.fact is None else _seconds(one.fact),
        str(one.failed),
    ]


def _cells(kill: KillReport) -> list[str]:
    url = {True: "same", False: "other", None: "-"}[kill.same_url]
    gone = _seconds(kill.deregistered) if kill.was_registered else "was not in"
    return [
        f"{kill.at:.1f} s",
        kill.how,
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


def _figures(report: Report) -> list[Line]:
    requests = report.requests
    listed = ", ".join(f"{worker} {life}" for worker, life in sorted(report.registered.items())) or "nobody"
    restarts = [
        f"killed at {restart.at:.1f} s; after its death it answered in {restart.answered:.3f} s, with an empty list, "
        f"and served in {_seconds(restart.served)} s"
        for restart in report.restarts
    ]
    falls = [
        f"{fall.program} ended by itself at {fall.at:.1f} s with code {fall.code}, and was started again: {fall.said}"
        for fall in report.falls
    ]
    failures = [f"{count} failed: {why}" for why, count in requests.failures.items()]
    return [
        *_block("requests", f"{requests.sent} sent ({requests.per_second:.1f}/s), {requests.failed} failed", *failures),
        *_block("", f"{requests.wrong} served by a wrong or dead incarnation"),
        *_block("", f"{requests.late} served by a life that stood still, was given up, and was still listed"),
        *_block("", f"{requests.early} served by a new incarnation before it was registered"),
        *_block("", *([f"{requests.foreign} served by the stranger's entry"] if requests.foreign else [])),
        *_block("router", *restarts, f"lists at the end: {listed}"),
        *_block("programs", *falls),
        *_block("log", f"{report.facts} facts; the replay was compared with the live state at {report.sequence}"),
    ]


def _block(title: str, *texts: str) -> list[Line]:
    return [[(f"{title if not index else '':<10}", "bold"), text] for index, text in enumerate(texts)]


def _check(check: Check) -> list[Line]:
    verdict: Piece = ("held    ", "green") if check.held else ("BROKEN  ", "bold red")
    lines: list[Line] = [[verdict, f"{check.guards:<4}{check.name} ({check.looked_at})"]]
    lines.extend([f"            {problem}"] for problem in check.broken)
    return lines


def _verdict(report: Report) -> Line:
    if report.passed:
        return [("Everything held.", "bold green")]
    count = sum(not check.held for check in report.checks)
    return [(f"{count} of {len(report.checks)} promises were broken.", "bold red")]
