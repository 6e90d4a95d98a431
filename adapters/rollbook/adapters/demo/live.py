"""What a person sees while the demo runs, on standard error: a table that changes on a terminal, lines elsewhere.

Both show the same: every fact as it is folded, and what the demo itself does.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Final, Protocol

from rollbook.adapters.cli.lines import describe
from rollbook.adapters.cli.output import Piece, console, say
from rollbook.adapters.demo.traffic import Traffic
from rollbook.events import Recorded
from rollbook.projections.ports import Stored
from rollbook.projections.state.fold import State
from rollbook.projections.state.ledger import Told

if TYPE_CHECKING:
    from rich.console import RenderableType

LINES_SHOWN: Final = 18
TICK_SECONDS: Final = 0.2
"""Between two `Show.tick`."""
_LINE_SECONDS: Final = 5.0
"""Between two lines about the run as a whole, where there is no screen."""
_RATE_SECONDS: Final = 2.0


class Show(Protocol):
    """Is told what happens."""

    def fact(self, stored: Stored, recorded: Recorded) -> None:
        """A fact was folded."""
        ...

    def note(self, text: str) -> None:
        """The demo did something itself."""
        ...

    def tick(self) -> None:
        """Show the run as it is now. To be called every `TICK_SECONDS` by whoever changes the state: it reads it."""
        ...


class View(Protocol):
    """What the table is made from, looked at again and again."""

    @property
    def title(self) -> str:
        """One line about the run as it is now."""
        ...

    @property
    def state(self) -> State | None:
        """The controller's state; None before there is one."""
        ...

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers that were launched."""
        ...

    @property
    def traffic(self) -> Traffic | None:
        """The requests; None before there are any."""
        ...


class Lines:
    """One plain line for everything, as it happens."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._next = 0.0

    def fact(self, stored: Stored, recorded: Recorded) -> None:
        """A fact was folded."""
        say("".join(piece if isinstance(piece, str) else piece[0] for piece in describe(stored, recorded)))

    def note(self, text: str) -> None:
        """The demo did something itself."""
        say(f"demo: {text}")

    def tick(self) -> None:
        """A line about the requests, now and then."""
        if self._view.traffic is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + _LINE_SECONDS
            self.note(f"{self._view.title}; {requests_line(self._view.traffic)}")


class Screen:
    """The workers and their registrations in a table, what happened last below it."""

    def __init__(self, view: View, proxy: str, refresh: Callable[[], None]) -> None:
        self._view = view
        self._proxy = proxy
        self._refresh = refresh
        self._lines: deque[list[Piece]] = deque(maxlen=LINES_SHOWN)

    def fact(self, stored: Stored, recorded: Recorded) -> None:
        """A fact was folded."""
        self._lines.append(describe(stored, recorded))

    def note(self, text: str) -> None:
        """The demo did something itself."""
        self._lines.append([("demo  ", "dim"), (text, "bold yellow")])

    def tick(self) -> None:
        """Draw it anew."""
        self._refresh()

    def __rich__(self) -> RenderableType:
        """What rich draws now."""
        from rich.console import Group
        from rich.text import Text

        lines = [Text.assemble(*pieces, no_wrap=True, overflow="ellipsis") for pieces in self._lines]
        return Group(
            Text(self._view.title, style="bold"),
            Text("" if self._view.traffic is None else requests_line(self._view.traffic)),
            Text(),
            self._table(),
            Text(),
            *lines,
        )

    def _table(self) -> RenderableType:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="dim")
        for title in ("worker", "life", "phase", "at the router", "evidence"):
            table.add_column(title, no_wrap=True)
        state = self._view.state
        for name in self._view.workers:
            worker = None if state is None else state.roster.workers.get(name)
            if state is None or worker is None:
                table.add_row(name, "-", "not heard of yet", "-", "")
                continue
            lives = state.ledger.look(self._proxy).registrations.get(name, {})
            told = ", ".join(f"{life} {said.told} {said.url}" for life, said in sorted(lives.items()))
            registered = any(
                said.told is Told.REGISTERED and life == worker.incarnation for life, said in lives.items()
            )
            style = "green" if registered else "red" if worker.phase == "down" else "yellow"
            row = (name, str(worker.incarnation), str(worker.phase), told or "-", worker.evidence or "")
            table.add_row(*row, style=style)
        return table


def requests_line(traffic: Traffic) -> str:
    """How many requests there were, and how many a second lately."""
    since = time.time() - _RATE_SECONDS
    recent = sum(1 for _ in itertools.takewhile(lambda request: request.done > since, reversed(traffic.requests)))
    return f"{len(traffic.requests)} requests, {recent / _RATE_SECONDS:.0f}/s now, {traffic.failed} failed"


@contextlib.contextmanager
def showing(view: View, proxy: str) -> Generator[Show]:
    """A screen if standard error is a terminal, lines if it is not."""
    terminal = console(stderr=True)
    if not terminal.is_terminal or terminal.is_dumb_terminal:
        yield Lines(view)
        return
    from rich.live import Live

    # Drawn from the event loop and not by rich's thread, which would read dictionaries while the fold changes them.
    with Live(console=terminal, auto_refresh=False, redirect_stdout=False) as live:
        screen = Screen(view, proxy, live.refresh)
        live.update(screen)
        yield screen
