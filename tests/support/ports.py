"""Ports of loopback for programs that must be told theirs, and for those that are killed and want theirs back."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

from rollbook.adapters.local_ports import rotated


def free_ports(count: int) -> list[int]:
    """So many, all different, of those that nobody is given who asks for any port. Somebody else may choose one too."""
    with ExitStack() as stack:
        found: list[int] = []
        for port in rotated(random.randrange(1 << 16)):
            if len(found) == count:
                break
            one = stack.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            found.append(port)
        return found
