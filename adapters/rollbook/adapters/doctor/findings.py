"""What an examination finds."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from enum import StrEnum
from typing import Final

import msgspec

LONGEST: Final = 400
"""Letters of what somebody else said."""


class State(StrEnum):
    """How one thing is."""

    OK = "ok"
    WARNING = "warning"
    """It works, and should not stay so; or nobody can tell from here."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """Not looked at: it does not apply here, or something before it failed."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at."""

    check: str
    """What: `nats`, `stream`, `proxy router-a`, ..."""
    state: State
    told: str
    """One line."""
    fix: str | None = None
    """One line; there for every warning and failure."""


class Examination(msgspec.Struct, frozen=True):
    """All of it: what `rollbook doctor --json` prints."""

    healthy: bool
    """Nothing failed."""
    checks: tuple[Finding, ...]


class Findings:
    """Collects them, in the order in which they are looked at."""

    def __init__(self) -> None:
        self.found: list[Finding] = []

    def ok(self, check: str, told: str) -> None:
        """It is well."""
        self.found.append(Finding(check, State.OK, told))

    def warning(self, check: str, told: str, fix: str) -> None:
        """It works, and should not stay so."""
        self.found.append(Finding(check, State.WARNING, _line(told), fix))

    def failed(self, check: str, told: str, fix: str) -> None:
        """It does not work."""
        self.found.append(Finding(check, State.FAILED, _line(told), fix))

    def skipped(self, check: str, why: str) -> None:
        """It was not looked at."""
        self.found.append(Finding(check, State.SKIPPED, why))

    @contextlib.contextmanager
    def surviving(self, check: str) -> Generator[None]:
        """Whatever goes wrong within is a finding too: an examination must not end at the first surprise."""
        try:
            yield
        except Exception as exc:  # noqa: BLE001 - told, with its type
            self.failed(check, f"could not be looked at: {type(exc).__name__}: {exc}", "report this; it is a defect")

    def examination(self) -> Examination:
        """What was found so far."""
        return Examination(not any(one.state is State.FAILED for one in self.found), tuple(self.found))


def _line(text: str) -> str:
    """One line of it, not too long."""
    joined = " ".join(text.split())
    return joined if len(joined) <= LONGEST else f"{joined[:LONGEST]}..."
