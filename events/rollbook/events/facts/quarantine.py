"""The quarantine family: messages on the fleet's subjects that are no facts, and why."""

from __future__ import annotations

from typing import ClassVar

from rollbook.events.facts.base import Fact, Sequence


class MessageQuarantined(Fact, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Says where the message is and what is wrong with it; does not copy it. Written once per sequence."""

    FAMILY: ClassVar[str] = "quarantine"
    PUBLISHED_BY: ClassVar[str] = "the leading controller"

    sequence: Sequence
    """Where the message is."""
    subject: str
    """What it was published on."""
    reason: str
    """A constant word, as in `Undecodable.reason`."""
    detail: str = ""
    """A sentence for people."""
