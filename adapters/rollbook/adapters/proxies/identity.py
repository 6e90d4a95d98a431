"""Who answered a readiness probe, in words for people, when it is not who it should be."""

from __future__ import annotations

from rollbook.projections.ports import Identity


def stranger(asked: str, identity: Identity, told: str | None) -> str:
    """`asked` was answered by somebody who says `told` where `identity` says what it should; None for nothing."""
    where = f"its field {identity.field}" if identity.header is None else f"its header {identity.header}"
    if told is None:
        return f"{asked} is answered by somebody who does not say who it is ({where} should be {identity.value!r})"
    return f"{asked} is answered by another worker: {where} is {told[:200]!r}, not {identity.value!r}"
