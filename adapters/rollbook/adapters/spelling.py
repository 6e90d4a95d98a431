"""Words that were probably meant, for keys, kinds and variables that are not known; and words beside a number."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 worker`, `2 workers`; `many` where an `s` does not do."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` was probably meant to be, or None."""
    spellings = {one.lower(): one for one in known}
    found = difflib.get_close_matches(word.lower(), spellings, n=1, cutoff=0.6)
    return spellings[found[0]] if found else None


def suggestion(word: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?`, or the list of what is known."""
    words = list(known)
    near = nearest(word, words)
    if near is not None:
        return f"did you mean {near!r}?"
    return f"known here: {', '.join(words)}" if words else "nothing is known here"
