"""The picture of a run, drawn with matplotlib: one file that needs nothing else."""

from __future__ import annotations

import html
import io
import math
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rollbook.adapters.spelling import counted
from rollbook.events import RollbookError
from rollbook.events.times import rfc3339
from rollbook.projections.history.timeline import LABELS, Mark, ProxyRow, Timeline, WorkerRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS: Final = (".html", ".svg", ".png")
COLOURS: Final = {
    "starting": "#5aa9e6",
    "serving": "#a9d8a0",
    "suspended": "#8e6cc0",
    "cordoned": "#f28e2b",
    "draining": "#f2d33b",
    "down": "#d7301f",
}
_MARKS: Final[dict[str, dict[str, Any]]] = {
    "restart": {"marker": "|", "color": "black", "label": "restart"},
    "drift": {"marker": "x", "color": "#e6007e", "label": "drift"},
    "takeover": {"marker": "v", "color": "#1f4e9c", "label": "takeover by a controller"},
}
_WIDTH: Final = 15.0
"""Inches, as all sizes here."""
_PROXY_HEIGHT: Final = 0.75
_MANY: Final = 60
"""Workers from which on rows are thinner."""
_TALLEST: Final = 300.0
"""For all workers together: an image has at most 65536 dots."""
_READABLE: Final = 0.1
"""Rows that are thinner share a name with those below."""
_DPI: Final = 110


class CannotDraw(RollbookError):
    """There is nothing to draw with, or to draw, or no place for it."""


def draw(picture: Timeline, path: Path) -> None:
    """Write the picture to `path`, as `.html`, `.svg` or `.png`. Raises `CannotDraw`."""
    if path.suffix not in FORMATS:
        raise CannotDraw(f"{path} does not say what to draw: let it end in {', '.join(FORMATS)}")
    try:
        import matplotlib as mpl
    except ImportError as exc:
        raise CannotDraw("drawing needs matplotlib, which is not installed: pip install 'rollbook[timeline]'") from exc
    if not picture.workers and not picture.proxies:
        raise CannotDraw(f"sequences {picture.first} to {picture.last} say nothing of any worker or proxy")
    # Text stays text, so that a browser finds a worker's name.
    with mpl.rc_context({"svg.fonttype": "none", "font.family": "sans-serif"}):
        figure = _figure(picture)
        content = _content(figure, picture, path.suffix)
    try:
        path.write_bytes(content)
    except OSError as exc:
        raise CannotDraw(f"{path} cannot be written: {exc.strerror}") from exc


def _content(figure: Figure, picture: Timeline, suffix: str) -> bytes:
    buffer = io.BytesIO()
    if suffix == ".png":
        figure.savefig(buffer, format="png", dpi=_DPI)
        return buffer.getvalue()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": "rollbook timeline"})
    if suffix == ".svg":
        return buffer.getvalue()
    svg = buffer.getvalue().decode()
    title = html.escape(f"Fleet {picture.fleet}, sequences {picture.first} to {picture.last}")
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        "<style>body{margin:0}svg{width:100%;height:auto}</style></head>\n<body>\n"
        f"{svg[svg.index('<svg') :]}</body></html>\n"
    )
    return page.encode()


def _figure(picture: Timeline) -> Figure:
    from matplotlib.figure import Figure as NewFigure

    row = 0.24 if len(picture.workers) <= _MANY else min(0.13, _TALLEST / len(picture.workers))
    heights = [_PROXY_HEIGHT] * len(picture.proxies) + [max(0.6, row * len(picture.workers))]
    inches = sum(heights) + 0.18 * len(heights) + 1.5
    figure = NewFigure(figsize=(_WIDTH, inches))
    grid = figure.add_gridspec(
        len(heights),
        1,
        height_ratios=heights,
        hspace=0.18 * len(heights) / max(sum(heights), 0.1),
        top=1 - 0.95 / inches,
        bottom=0.55 / inches,
        left=0.12,
        right=0.985,
    )
    plots = [figure.add_subplot(grid[number]) for number in range(len(heights))]
    for plot, proxy in zip(plots, picture.proxies, strict=False):
        _proxy(plot, proxy, picture)
    _workers(plots[-1], picture.workers, row)
    for plot in plots:
        above = plot is plots[0] and len(picture.workers) > _MANY  # the labels below are pages away
        _time_axis(plot, picture, above=above, below=plot is plots[-1])
    figure.suptitle(
        f"Fleet {picture.fleet}: {counted(len(picture.workers), 'worker')}, "
        f"{counted(len(picture.proxies), 'proxy', 'proxies')}, sequences "
        f"{picture.first} to {picture.last}, {rfc3339(picture.begin)} to {rfc3339(picture.end)}",
        x=0.12,
        y=1 - 0.18 / inches,
        ha="left",
        fontsize=11,
    )
    _legend(figure, picture, 1 - 0.36 / inches)
    return figure


def _proxy(plot: Axes, proxy: ProxyRow, picture: Timeline) -> None:
    times = [moment for moment, _ in proxy.counts] + [picture.end]
    counts = [count for _, count in proxy.counts]
    counts.append(counts[-1] if counts else 0)
    most = max(counts)
    plot.step([_date(t) for t in times], counts, where="post", color="#1f4e9c", linewidth=1.2)
    plot.fill_between([_date(t) for t in times], counts, step="post", color="#1f4e9c", alpha=0.15)
    for begin, end in proxy.unreachable:
        plot.axvspan(_date(begin), _date(end), color="#d7301f", alpha=0.25, linewidth=0)
    _marks(plot, proxy.marks, [most * 1.18 or 0.5] * len(proxy.marks), 30)
    plot.set_ylim(0, max(1, most) * 1.35)
    plot.set_yticks([0, most] if most else [0])
    plot.tick_params(axis="y", labelsize=7)
    plot.set_ylabel(proxy.name, rotation=0, ha="right", va="center", fontsize=8, labelpad=18)


def _workers(plot: Axes, workers: tuple[WorkerRow, ...], row: float) -> None:
    from matplotlib.collections import PolyCollection

    bars: dict[str, list[list[tuple[float, float]]]] = {}
    for number, worker in enumerate(workers):
        for span in worker.spans:
            begin, end = _date(span.begin), _date(span.end)
            low, high = number - 0.4, number + 0.4
            bars.setdefault(span.label, []).append([(begin, low), (begin, high), (end, high), (end, low)])
    for label, corners in bars.items():
        # An edge makes the shortest interruption as wide as a line.
        edge = 0.0 if label == "serving" else 0.9
        shape = PolyCollection(corners, facecolors=COLOURS[label], edgecolors=COLOURS[label], linewidths=edge)
        plot.add_collection(shape)
    marks = [(mark, number) for number, worker in enumerate(workers) for mark in worker.marks]
    _marks(plot, [mark for mark, _ in marks], [number for _, number in marks], 50 * row / 0.24)
    plot.set_ylim(len(workers) - 0.4, -0.6)
    named = range(0, len(workers), max(1, math.ceil(_READABLE / row)))
    plot.set_yticks(named, [workers[number].name for number in named])
    plot.tick_params(axis="y", labelsize=5 if row < 0.2 else 8, length=0)  # noqa: PLR2004 - the thinner rows
    if not workers:
        plot.text(0.5, 0.5, "no worker", transform=plot.transAxes, ha="center", va="center")


def _marks(plot: Axes, marks: list[Mark] | tuple[Mark, ...], heights: list[Any], size: float) -> None:
    for kind, style in _MARKS.items():
        found = [(_date(mark.at), height) for mark, height in zip(marks, heights, strict=True) if mark.kind == kind]
        if found:
            shape = {name: value for name, value in style.items() if name != "label"}
            plot.scatter([x for x, _ in found], [y for _, y in found], s=size, linewidths=1.0, zorder=3, **shape)


def _time_axis(plot: Axes, picture: Timeline, *, above: bool, below: bool) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    margin = max((picture.end - picture.begin) * 0.005, 0.001)
    plot.set_xlim(_date(picture.begin - margin), _date(picture.end + margin))
    locator = AutoDateLocator(minticks=6, maxticks=14)  # type: ignore[no-untyped-call] # matplotlib's
    plot.xaxis.set_major_locator(locator)
    formatter = ConciseDateFormatter(locator, tz=UTC, show_offset=below)  # type: ignore[no-untyped-call] # matplotlib's
    plot.xaxis.set_major_formatter(formatter)
    plot.tick_params(axis="x", labelbottom=below, labeltop=above, labelsize=8)
    plot.grid(axis="x", color="#dddddd", linewidth=0.6)
    plot.set_axisbelow(True)
    for side in ("top", "right"):
        plot.spines[side].set_visible(False)
    if below:
        plot.set_xlabel("time by the log's clock, UTC", fontsize=8)


def _legend(figure: Figure, picture: Timeline, height: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    used = {span.label for worker in picture.workers for span in worker.spans}
    marks = [row.marks for row in picture.workers] + [row.marks for row in picture.proxies]
    kinds = {mark.kind for found in marks for mark in found}
    entries: list[Any] = [Patch(color=COLOURS[label], label=label) for label in LABELS if label in used]
    for kind, style in _MARKS.items():
        if kind in kinds:
            entries.append(Line2D([], [], linestyle="none", markersize=7, markeredgewidth=1.4, **style))
    if any(proxy.unreachable for proxy in picture.proxies):
        entries.append(Patch(color="#d7301f", alpha=0.25, label="proxy unreachable"))
    entries.append(Line2D([], [], color="#1f4e9c", label="registered workers"))
    figure.legend(
        handles=entries,
        loc="upper left",
        bbox_to_anchor=(0.115, height),
        ncols=len(entries),
        fontsize=7.5,
        frameon=False,
        handlelength=1.4,
        columnspacing=1.2,
    )


def _date(moment: float) -> float:
    """As matplotlib counts: days since the epoch."""
    return moment / 86_400.0
