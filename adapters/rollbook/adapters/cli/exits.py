"""Exit codes, and the errors that only a command line has.

::

    RollbookError
    ├── UsageError     arguments that contradict each other or the situation
    └── WaitedTooLong  --timeout is over
    OutputClosed       whoever read standard output went away; not an error of anybody
"""

from __future__ import annotations

from enum import IntEnum

from rollbook.events import RollbookError


class Exit(IntEnum):
    """What every command answers with."""

    DONE = 0
    """Done, or nothing to do."""
    FAILED = 1
    """Any other failure."""
    DIFFERENCES = 2
    """Differences or drift were found."""
    WAITED = 3
    """Timed out waiting."""
    USAGE = 64
    """Wrong usage or configuration."""
    INTERRUPTED = 130
    """Ctrl-C."""


class UsageError(RollbookError):
    """Arguments that contradict each other or the situation."""


class WaitedTooLong(RollbookError):
    """The time that the caller gave is over."""


class OutputClosed(Exception):
    """Whoever read standard output went away: `| head` has seen enough, and nothing is wrong."""
