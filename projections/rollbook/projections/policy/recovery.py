"""How what is down is restarted, in one pool."""

from __future__ import annotations

import msgspec


class RecoveryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How `rollbook recover` restarts the cells of one pool. Times are in seconds."""

    restart: bool = True
    """Whether recoverers restart cells of this pool at all."""
    attempts: int = 5
    """Restarts of one cell within `window`; if it is down once more it is in a crash loop, and is cordoned."""
    window: float = 3600.0
    """In which attempts are counted: somewhat more than `attempts` times `claim`, or the pauses between them where
    those are longer, or starts that hang would be tried for ever."""
    backoff_first: float = 2.0
    """Between the first restart within the window, which waits for nothing, and the second; doubles with each one."""
    backoff_most: float = 120.0
    """The longest such wait."""
    parallel: int = 4
    """Cells restarted at a time, by all recoverers together: they read their weights from one store."""
    claim: float = 600.0
    """For a cell to be up again, from the claim on. It is also how long a cell waits whose recoverer was killed."""
