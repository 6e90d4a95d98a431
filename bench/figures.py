"""What a benchmark returns, and how samples become figures."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One measured value with its bar."""

    name: str
    value: float
    target: float
    better: Literal["lower", "higher"]
    unit: str
    note: str

    @property
    def reached(self) -> bool:
        """Whether the value is on the good side of the target."""
        return self.value <= self.target if self.better == "lower" else self.value >= self.target


def p50(samples: Sequence[float]) -> float:
    """The median."""
    return statistics.median(samples)


def us(seconds: float) -> str:
    """Seconds as microseconds, for notes."""
    return f"{seconds * 1e6:.1f} µs"


def ms(seconds: float) -> str:
    """Seconds as milliseconds, for notes."""
    return f"{seconds * 1e3:.2f} ms"
