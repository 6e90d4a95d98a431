"""What commands print: data on standard output, everything else on standard error, colours on a terminal only."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from rollbook.adapters.cli.exits import OutputClosed

if TYPE_CHECKING:
    from rich.console import Console

Piece = str | tuple[str, str]
"""Text, or text with the name of a rich style."""

_MOVES: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Letters that move a cursor, colour, or turn text round; a tab and the end of a line are left."""
_NOT_PLAIN: Final = re.compile(r"[^\t\n -~]")


def prepare_streams() -> None:
    """Let a command run whoever started it: with closed streams, or with ones that cannot write every letter.

    A socket that took the place of a closed stream would end the event loop's process, or be written to as output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free, which is this one
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115 - as long as the process
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115 - as above
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def out(text: str, *, flush: bool = False) -> None:
    """Print one line of data. Raises `OutputClosed` if nobody reads it any more."""
    try:
        print(text, flush=flush)
    except BrokenPipeError as exc:
        raise OutputClosed from exc


def out_json(value: Any) -> None:
    """Print one JSON document on one line."""
    out(json_text(json.dumps(value, ensure_ascii=False)))


def json_text(document: str) -> str:
    """The same document, with what a terminal would obey, or this output cannot write, as JSON escapes it."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
    return (_MOVES if unicode else _NOT_PLAIN).sub(_escaped, document)


def _escaped(found: re.Match[str]) -> str:
    letter = found[0]
    return json.dumps(letter)[1:-1] if letter > "\x7f" else f"\\u{ord(letter):04x}"


def say(text: str) -> None:
    """Tell the person something that is not data; if nobody listens, that is no failure."""
    with contextlib.suppress(BrokenPipeError):
        print(_MOVES.sub(_escaped, text), file=sys.stderr, flush=True)


def close_output() -> None:
    """Write out what is buffered. Raises `OutputClosed` if nobody reads it any more."""
    try:
        sys.stdout.flush()
    except BrokenPipeError as exc:
        raise OutputClosed from exc


def forget_output() -> None:
    """After `OutputClosed`: let the interpreter's own last flush go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


LONGEST_SHOWN: Final = 200
"""Letters of a reason, a URL or a name. Whoever writes one may write at any length; `--json` has it whole."""


def one_line(text: str, most: int | None = None) -> str:
    """Text from outside, for a line of its own: nothing in it moves a cursor or colours, and it has `most` letters."""
    shown = text if most is None or len(text) <= most else text[:most] + "..."
    return shown if shown.isprintable() else _NOT_PLAIN.sub(_escaped, json.dumps(shown)[1:-1])


class Lines:
    """Prints lines made of pieces: in colour on a terminal, plain and fast everywhere else."""

    def __init__(self, *, flush: bool = False) -> None:
        self._flush = flush
        self._console = console() if sys.stdout.isatty() else None

    def write(self, pieces: Sequence[Piece]) -> None:
        """One line. Raises `OutputClosed`."""
        line = "".join(piece if isinstance(piece, str) else piece[0] for piece in pieces)
        if not line.isprintable():  # whoever made the pieces should have seen to it
            line, pieces = one_line(line), [one_line(line)]
        if self._console is None:
            out(line, flush=self._flush)
            return
        from rich.text import Text

        self._console.print(Text.assemble(*pieces), soft_wrap=True)


def out_document(document: msgspec.Struct, lines: Iterable[Sequence[Piece]], *, json: bool) -> None:
    """Print data the way that was asked for: as one JSON document, or as `lines` for a person."""
    if json:
        out_json(msgspec.to_builtins(document))
        return
    shown = Lines()
    for line in lines:
        shown.write(line)


def console(*, stderr: bool = False) -> Console:
    """A rich console that honours NO_COLOR and terminals, marks nothing up by itself, and raises `OutputClosed`."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> NoReturn:
            raise OutputClosed

    return Plain(stderr=stderr, highlight=False, markup=False, emoji=False)
