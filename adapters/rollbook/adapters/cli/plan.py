"""`rollbook plan`: what a pass would change and why, one line per entry."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from cyclopts import Parameter

from rollbook.adapters.cli.common import ConfigFile, Found, Json, ProxyName, load_what_is_there, run, start_logs
from rollbook.adapters.cli.exits import Exit, UsageError
from rollbook.adapters.cli.output import LONGEST_SHOWN, Piece, one_line, out_document, say
from rollbook.adapters.cli.table import table

if TYPE_CHECKING:
    from rollbook.projections.looking.preview import Line, Preview

EXAMPLE = """\
Example:

    rollbook plan
    rollbook plan --proxy router-a --json
    rollbook plan --out next.plan

Marks: `+` register, `~` replace, `-` deregister, `!` withheld, `?` foreign.

Exit codes: 0 nothing to do, 2 changes, 1 a proxy did not answer or anything
else failed."""

_MARKS: Final = {"register": "+", "replace": "~", "deregister": "-", "withheld": "!", "foreign": "?"}
_STYLES: Final = {"+": "green", "~": "cyan", "-": "red", "!": "yellow", "?": "dim", "x": "bold red"}


def plan(
    *,
    proxy: ProxyName = None,
    json: Json = False,
    out: Annotated[Path | None, Parameter(help="Keep the plan in this file, for `rollbook reconcile --plan`.")] = None,
    config: ConfigFile = None,
) -> Exit:
    """Show what a pass would change and why, without changing anything.

    The controller is asked if one runs; otherwise the proxies are, where the configuration names them; otherwise the
    log alone tells.
    """
    found = load_what_is_there(config)
    start_logs()
    preview = run(_take(found, proxy))
    if out is not None:
        write_plan(preview, proxy, out)
    return show(preview, json=json)


async def _take(found: Found, proxy: str | None) -> Preview:
    from rollbook.adapters.cli.asking import open_found, preview

    async with open_found(found) as reader:
        return await preview(found, reader, proxy)


def write_plan(preview: Preview, proxy: str | None, file: Path) -> None:
    """Keep a plan. Raises `UsageError` if it could not be held against the world later."""
    from rollbook.projections.looking.saved import save

    if preview.unreachable:
        raise UsageError(f"a plan without what {', '.join(preview.unreachable)} lists cannot be kept")
    if any(line.worker is not None and line.url is None and line.differs for line in preview.lines):
        raise UsageError("a plan without the workers' addresses cannot be kept: it needs a controller, or the provider")
    kept = msgspec.json.format(msgspec.json.encode(save(preview, proxy)), indent=2) + b"\n"
    try:
        _write_whole(kept, file)
    except OSError as exc:
        raise UsageError(f"{file} cannot be written: {exc.strerror}") from exc


def _write_whole(content: bytes, file: Path) -> None:
    """All of it or nothing: what is half written is beside `file`, and taken away. A pipe is written to."""
    if file.exists() and not file.is_file():
        file.write_bytes(content)
        return
    beside = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(content)
        beside.replace(file)
    finally:
        beside.unlink(missing_ok=True)


def show(preview: Preview, *, json: bool) -> Exit:
    """Print it, and say how it stands."""
    out_document(preview, render(preview), json=json)
    for note in preview.notes:
        say(f"rollbook: {note}")
    return verdict(preview)


def verdict(preview: Preview) -> Exit:
    """A proxy of which nothing is known is a failure, whatever the others are."""
    if preview.unreachable:
        return Exit.FAILED
    return Exit.DIFFERENCES if preview.differs else Exit.DONE


def render(preview: Preview) -> Iterator[list[Piece]]:
    """The lines for a person, and the counts."""
    rows = [row(line) for line in preview.lines]
    rows += [
        _styled("x", ["x unreachable", proxy, "", one_line(reason, LONGEST_SHOWN)])
        for proxy, reason in preview.unreachable.items()
    ]
    yield from table(rows, head=False)
    yield [preview.summary()]


def row(line: Line) -> list[Piece]:
    """One entry as cells of a table."""
    mark = _MARKS[line.change]
    return _styled(mark, [f"{mark} {line.change}", line.proxy, one_line(_whom(line)), _why(line)])


def _styled(mark: str, cells: list[str]) -> list[Piece]:
    first, *others, last = cells
    return [(first, _STYLES[mark]), *others, (last, "dim")]


def _whom(line: Line) -> str:
    if line.worker is None:
        return (line.url or "")[:LONGEST_SHOWN]
    lives = [f"#{was.incarnation}" for was in line.was if was.incarnation != line.incarnation]
    life = " -> ".join([",".join(lives), f"#{line.incarnation}"]) if lives else f"#{line.incarnation}"
    urls = [was.url for was in line.was if was.url != line.url]
    url = " -> ".join([",".join(urls), line.url or "?"]) if urls else line.url or ""
    return f"{line.worker} {life} {url[:LONGEST_SHOWN]}".rstrip()


def _why(line: Line) -> str:
    parts = (None if line.would is None else str(line.would), line.gate, line.reason)
    return one_line(": ".join(part for part in parts if part), LONGEST_SHOWN)
