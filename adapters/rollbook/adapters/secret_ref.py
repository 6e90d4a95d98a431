"""A secret by reference: what may stand in a file where the secret itself may not."""

from __future__ import annotations

import msgspec


class SecretRef(msgspec.Struct, frozen=True, kw_only=True):
    """Where a secret is. Exactly one of the two; the secret itself never stands in the file."""

    env: str | None = None
    """Name of the environment variable that holds it."""
    file: str | None = None
    """File that holds it, beside the configuration if the path is relative. Line breaks at its end are dropped."""
