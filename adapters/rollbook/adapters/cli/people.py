"""Who sits at the keyboard, for facts that say who decided."""

from __future__ import annotations

import getpass
import os
import re
import socket


def who() -> str:
    """`user@host`, as far as the machine knows."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


def publisher_name() -> str:
    """Who publishes, for the log: `cli-<host>-<pid>`, in letters that a name may have."""
    return f"cli-{re.sub(r'[^A-Za-z0-9_-]', '-', socket.gethostname())[:80]}-{os.getpid()}"
