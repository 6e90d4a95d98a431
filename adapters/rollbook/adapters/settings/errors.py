"""What is wrong with a configuration, all of it at once.

::

    RollbookError
    └── ConfigError      the file, a variable or a secret cannot be used; the command line answers with 64
"""

from __future__ import annotations

from collections.abc import Sequence

from rollbook.events import RollbookError


class ConfigError(RollbookError):
    """The configuration cannot be used. `problems` has one line for each reason: where, what, what to write instead."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)
