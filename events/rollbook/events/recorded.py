"""What the log knows about a fact. Its own type, because a fact that nobody has recorded has none of this."""

from __future__ import annotations

import msgspec

from rollbook.events.facts import Fact


class Recorded(msgspec.Struct, frozen=True, gc=False):
    """A fact with its place in the fleet's log."""

    sequence: int
    """The stream sequence: the only order there is."""
    id: str
    """The envelope's id, a UUIDv7; also the deduplication id."""
    time: str
    """RFC 3339, from the author's clock: for people only, never compared."""
    source: str
    """`rollbook://<fleet>/<publisher>`: who said it."""
    fact: Fact
