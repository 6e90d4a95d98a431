"""The folder of an embedded server (`.rollbook`): who owns it, and the files by which others find the server.

::

    nats.lock   held (flock) by the owning process for as long as it lives; says who it is
    nats.url    where the server is, with its token; only there while the server runs
    nats.json   port and token, kept, so that publishers find the server again after a restart of its owner
    nats.conf   what the server was started with
    nats.pid    the server's process
    nats.log    what the server says
    nats/       the store

Every file that holds the token is readable by its owner only.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from pathlib import Path

import msgspec

from rollbook.events.times import rfc3339
from rollbook.projections.ports import LogError


class EmbeddedError(LogError):
    """The embedded server cannot run here, or does not run any more. The message says what to do."""


class AlreadyRunning(EmbeddedError):
    """Another process owns this folder's server."""


class Owner(msgspec.Struct, frozen=True):
    """Who holds the lock."""

    pid: int
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} since {self.since}"


class Kept(msgspec.Struct):
    """What survives a restart of the owner."""

    token: str
    port: int


class Folder:
    """The files. `path` is made, for its owner only, when the lock is taken."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._lock: int | None = None

    @property
    def url_file(self) -> Path:
        """`nats.url`."""
        return self.path / "nats.url"

    @property
    def config_file(self) -> Path:
        """`nats.conf`."""
        return self.path / "nats.conf"

    @property
    def pid_file(self) -> Path:
        """`nats.pid`."""
        return self.path / "nats.pid"

    @property
    def log_file(self) -> Path:
        """`nats.log`."""
        return self.path / "nats.log"

    @property
    def store(self) -> Path:
        """`nats/`."""
        return self.path / "nats"

    # ------------------------------------------------------------ ownership

    def lock(self) -> None:
        """Become the owner until `unlock` or the end of this process. Raises `AlreadyRunning` or `EmbeddedError`."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(".gitignore", "*\n")  # the token must not be committed by accident
            file = os.open(self.path / "nats.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise EmbeddedError(
                f"the embedded NATS server needs a folder that it can write, and {self.path} is none "
                f"({exc.strerror}); start in another folder, or set nats.url"
            ) from exc
        if not _lock(file, fcntl.LOCK_EX):
            os.close(file)
            raise AlreadyRunning(
                f"{self.path} is in use: {self.owner() or 'another process'} runs its NATS server. Stop that one "
                "first, or start in another folder; commands that only look need no server of their own"
            )
        os.ftruncate(file, 0)
        os.write(file, msgspec.json.encode(Owner(os.getpid(), rfc3339(time.time()))))
        self._lock = file

    def unlock(self) -> None:
        """Stop being the owner. Does nothing if this is not it."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def is_owned(self) -> bool:
        """Whether a living process owns the folder."""
        try:
            file = os.open(self.path / "nats.lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return not _lock(file, fcntl.LOCK_SH, patience=0)
        finally:
            os.close(file)

    def owner(self) -> Owner | None:
        """Who took the lock last; alive or not."""
        try:
            return msgspec.json.decode((self.path / "nats.lock").read_bytes(), type=Owner)
        except (OSError, msgspec.MsgspecError):
            return None

    # ------------------------------------------------------------ files

    def kept(self) -> Kept:
        """Port (0: none yet) and token of the last time; a new token if there was none."""
        try:
            return msgspec.json.decode((self.path / "nats.json").read_bytes(), type=Kept)
        except (OSError, msgspec.MsgspecError):
            return Kept(secrets.token_urlsafe(32), 0)

    def keep(self, kept: Kept) -> None:
        """Remember port and token."""
        self._write("nats.json", msgspec.json.encode(kept).decode())

    def write_config(self, text: str) -> None:
        """Write `nats.conf`."""
        self._write(self.config_file.name, text)

    def announce(self, url: str) -> None:
        """Let others find the server."""
        self._write(self.url_file.name, f"{url}\n")

    def withdraw(self) -> None:
        """Let nobody look for the server any more."""
        self.url_file.unlink(missing_ok=True)

    def _write(self, name: str, text: str) -> None:
        """Replace a file as a whole, readable by its owner only."""
        temporary = self.path / f"{name}.{os.getpid()}.new"
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "w") as stream:
            stream.write(text)
        temporary.replace(self.path / name)


def _lock(file: int, kind: int, patience: float = 0.5) -> bool:
    """Try to lock. Patience is for those who only look whether there is an owner: they hold it for microseconds."""
    until = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(0.01)
        else:
            return True
