"""What all facts share: they are frozen structs that name whom they are about and nothing about how they travel."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
"""A fleet, worker, pool, proxy or publisher name."""

Incarnation = Annotated[int, msgspec.Meta(ge=1)]
"""One life of a worker; a later start has a higher number."""

Sequence = Annotated[int, msgspec.Meta(ge=0)]
"""A position in the fleet's log; 0 stands for "before everything"."""


class Fact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Something that happened: past tense, immutable. `Recorded` once the log has given it a sequence."""

    FAMILY: ClassVar[str] = ""
    """The second word of the CloudEvents type and of the subject."""
    VERSION: ClassVar[int] = 1
    """Counts changes of meaning; an older version in the log is upcast, never edited."""
