"""HAProxy's Runtime API speaks in text: what its servers are called, and what its tables and answers say.

Pure. A server's name is free text to HAProxy, so it carries whose the server is: `<worker>.<incarnation>.<fleet>`. None
of the three can hold a dot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from rollbook.projections.ports import Answer, Done, Failed, Unsupported

SERVER_NAME: Final = re.compile(r"[A-Za-z0-9_.:-]+")
"""All letters that HAProxy allows in a name."""

_OURS: Final = re.compile(r"([A-Za-z0-9_-]{1,128})\.([1-9][0-9]{0,15})\.([A-Za-z0-9_-]{1,128})")
"""As many digits as the largest incarnation has."""

_CHECKED: Final = 4
"""In `srv_check_state`: health checks are switched on."""
_RUNNING: Final = {1, 2}
"""Of `srv_op_state`: starting slowly, running. The others are stopped and stopping."""

_GONE: Final = "No such server."
_DID: Final = ("New server registered.", "Server deleted.")
_NEVER: Final = (
    "Backend must use a dynamic load balancing",
    "cannot be removed at runtime due to other configuration elements pointing to it",
)
"""Parts of what it says when its configuration file does not allow it."""


class Life(NamedTuple):
    """Whose a server is."""

    worker: str
    incarnation: int
    fleet: str


class Server(msgspec.Struct, frozen=True, gc=False):
    """One server of the backend."""

    name: str
    host: str
    """An IP address; for a server of the configuration file possibly a name, and `-` if it has neither."""
    port: int
    tls: bool
    up: bool | None
    """What its health checks say, None without any."""
    in_rotation: bool
    """False while it is in maintenance or drained, by whoever's command. A server that was only added is in
    maintenance."""


class Unreadable(ValueError):
    """A text that is not what HAProxy says."""


def server_name(life: Life) -> str:
    """What the server of that life is called."""
    return f"{life.worker}.{life.incarnation}.{life.fleet}"


def read_name(name: str) -> Life | None:
    """Whose server has that name, or None for one that is nobody's."""
    found = _OURS.fullmatch(name)
    return None if found is None else Life(found[1], int(found[2]), found[3])


def read_info(text: str) -> str:
    """The version in the answer to `show info`. Raises `Unreadable`."""
    fields = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    if fields.get("Name") != "HAProxy" or "Version" not in fields:
        raise Unreadable("it does not say that it is HAProxy")
    return fields["Version"]


def read_servers(text: str) -> list[Server]:
    """The answer to `show servers state <backend>`. Raises `Unreadable`."""
    return [_server(row) for row in _rows(text)]


def read_running(text: str) -> dict[str, int]:
    """Name → connections in use (the odd health check among them), of `show servers conn`. Raises `Unreadable`."""
    try:
        return {row["bkname/svname"].rpartition("/")[2]: int(row["used_cur"]) for row in _rows(text)}
    except (KeyError, ValueError) as exc:
        raise Unreadable(f"its table of connections lacks {exc}") from exc


def read_answer(text: str) -> Answer:
    """What became of a command that changes something. Silence is success, and so is a server that is gone."""
    said = " ".join(text.split())
    if not said or said == _GONE or any(word in said for word in _DID):
        return Done()
    if any(words in said for words in _NEVER):
        return Unsupported(said)
    return Failed(said)


def _rows(text: str) -> Iterator[dict[str, str]]:
    """The rows of a table whose columns stand in a line that begins with `#`, before them a version number or not."""
    lines = text.splitlines()
    if lines and lines[0].isdigit():
        del lines[0]
    if not lines or not lines[0].startswith("# "):
        raise Unreadable("its answer is no table")
    columns = lines[0][2:].split()
    for line in lines[1:]:
        values = line.split()
        if len(values) < len(columns) - 1:
            raise Unreadable(f"a line of its table is too short: {line[:80]!r}")
        yield dict(zip(columns, values, strict=False))


def _server(row: dict[str, str]) -> Server:
    try:
        checked = bool(int(row["srv_check_state"]) & _CHECKED)
        host = row["srv_addr"] if row["srv_addr"] != "-" else row["srv_fqdn"]
        return Server(
            name=row["srv_name"],
            host=host,
            port=int(row["srv_port"]),
            tls=row["srv_use_ssl"] == "1",
            up=int(row["srv_op_state"]) in _RUNNING if checked else None,
            in_rotation=row["srv_admin_state"] == "0",
        )
    except (KeyError, ValueError) as exc:
        raise Unreadable(f"its table of servers lacks {exc}") from exc
