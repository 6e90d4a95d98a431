"""What all facts share: they are frozen structs that name whom they are about and nothing about how they travel."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import msgspec

Name = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_-]{1,128}\Z")]
"""A fleet, worker, pool, proxy or publisher name. (`$` would let a trailing newline through.)"""

MAX_INTEGER: Final = 2**53 - 1
"""What every JSON reader can hold. Without a bound one fact could hold a number that no snapshot can."""

Integer = Annotated[int, msgspec.Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
"""A number with no other limits, such as a version of the weights."""

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
"""How many, or which one counted from 0."""

Incarnation = Annotated[int, msgspec.Meta(ge=1, le=MAX_INTEGER)]
"""One life of a worker; a later start has a higher number."""

Sequence = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
"""A position in the fleet's log; 0 stands for "before everything"."""


LONGEST_URL: Final = 2048
"""Letters. No worker's address is longer, and a fact that could hold any would not fit into the next one."""

Url = Annotated[str, msgspec.Meta(max_length=LONGEST_URL)]
"""The URL of a worker."""


LONGEST_LEASE: Final = 86_400
"""Seconds."""

Lease = Annotated[float, msgspec.Meta(gt=0, le=LONGEST_LEASE)]
"""Seconds, at most a day."""


class Fact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Something that happened: past tense, immutable. `Recorded` once the log has given it a sequence."""

    FAMILY: ClassVar[str] = ""
    """The second word of the CloudEvents type and of the subject."""
    PUBLISHED_BY: ClassVar[str] = ""
    """Who says it, for the catalogue in docs/events.md."""
    VERSION: ClassVar[int] = 1
    """Counts changes of meaning; an older version in the log is upcast, never edited."""
