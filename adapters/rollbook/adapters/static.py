"""Providers for workers that nobody else can tell of: their addresses stand in the configuration, or in a file.

No file knows whether anybody is at an address; so nobody is said to be alive, and nobody to be dead.
"""

from __future__ import annotations

import asyncio
import stat
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from rollbook.adapters.locating import ANY, DEADLINE, Locating
from rollbook.adapters.ray.border import ActorSilent, RayThread
from rollbook.adapters.settings.decode import decode, describe, format_path
from rollbook.adapters.settings.model import WorkersFile, parse_host_and_port
from rollbook.events import RollbookError
from rollbook.projections.ports import HostAndPort, Located, ProviderUnavailable, ProviderWorker

LARGEST: Final = 64 * 1024 * 1024
"""Bytes of a file of workers: about a million of them. What is larger is another file."""
_INCARNATION: Final = "incarnation"


class StaticProvider(Locating):
    """Knows what it was given, by worker and by the address's name."""

    who = "the configuration"

    def __init__(self, workers: Mapping[str, Mapping[str, HostAndPort]]) -> None:
        self._workers = {worker: Located(dict(addresses), ANY) for worker, addresses in workers.items()}

    async def locate(self, names: Iterable[str]) -> dict[str, Located]:
        """All that it knows of `names`; unknown ones are left out."""
        return {name: self._workers[name] for name in names if name in self._workers}

    async def list_workers(self) -> list[ProviderWorker]:
        """Every worker that the configuration names."""
        return _listed(self._workers)


class FileProvider(Locating):
    """Knows what stands in `file` at the moment of the question. What cannot be read is unknown, never gone.

    It is read at every question, and understood anew when another byte stands in it: everybody who waits for an address
    is looked up alone, and a file of 10,000 workers takes a quarter of a second to understand. The file may lie on a
    file system that hangs: `deadline` (seconds) bounds each reading. What is understood only after that is known to the
    next question.
    """

    def __init__(self, file: Path, *, deadline: float = DEADLINE) -> None:
        self.who = f"the file {file}"
        self._file = file
        self._deadline = deadline
        self._thread = RayThread()
        self._understood: tuple[bytes, tuple[dict[str, Located], list[str]]] | None = None

    async def locate(self, names: Iterable[str]) -> dict[str, Located]:
        """All that it knows of `names`; unknown ones are left out. Raises `ProviderUnavailable`."""
        known = await self._read()
        return {name: known[name] for name in names if name in known}

    async def list_workers(self) -> list[ProviderWorker]:
        """Every worker that the file names. Raises `ProviderUnavailable`."""
        return _listed(await self._read())

    async def _read(self) -> dict[str, Located]:
        try:
            async with asyncio.timeout(self._deadline):
                known, problems = await asyncio.wrap_future(self._thread.submit(self._look))
        except TimeoutError as exc:
            raise ProviderUnavailable(f"{self._file}: could not be read within {self._deadline:g} s") from exc
        except ActorSilent as exc:
            raise ProviderUnavailable(f"{self._file}: could not be read: {exc}") from exc
        if problems:
            told = f"{problems[0]}" + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")
            raise ProviderUnavailable(f"where the workers are is unknown: {told}")
        return known

    def _look(self) -> tuple[dict[str, Located], list[str]]:
        try:
            data = _bytes_of(self._file)
        except _Unreadable as exc:
            return {}, [str(exc)]
        if self._understood is None or self._understood[0] != data:
            self._understood = data, _understand(data, self._file)
        return self._understood[1]


def read_workers(file: Path) -> tuple[dict[str, Located], list[str]]:
    """What the file says, or nothing and all that is wrong with it, one line each. Blocks."""
    try:
        return _understand(_bytes_of(file), file)
    except _Unreadable as exc:
        return {}, [str(exc)]


class _Unreadable(RollbookError):
    """The file's bytes are not to be had."""


def _bytes_of(file: Path) -> bytes:
    """All of them. Raises `_Unreadable`."""
    try:
        about = file.stat()
        if not stat.S_ISREG(about.st_mode):
            # A pipe without a writer would hold up whoever opens it, and all who wait behind him, for ever.
            raise _Unreadable(f"{file}: is no file, but a directory, a pipe or a device; provider.file names it")
        if about.st_size > LARGEST:
            raise _Unreadable(f"{file}: has {about.st_size} bytes, more than {LARGEST}; provider.file names it")
        return file.read_bytes()
    except OSError as exc:
        raise _Unreadable(f"{file}: cannot be read ({exc.strerror}); provider.file names it") from exc
    except ValueError as exc:
        raise _Unreadable(f"{str(file)!r} can be no file's name ({exc}); provider.file names it") from exc


def _understand(data: bytes, file: Path) -> tuple[dict[str, Located], list[str]]:
    """As `read_workers`. Pure."""
    try:
        tree = tomllib.loads(data.decode())
    except UnicodeDecodeError:
        return {}, [f"{file}: is not UTF-8 text, so it is no TOML file"]
    except ValueError as exc:  # a number of 5000 digits is one too
        return {}, [f"{file}: is not TOML: {exc}"]
    except RecursionError:
        return {}, [f"{file}: is nested too deep"]
    incarnations, problems = _incarnations(tree, str(file))
    decoded, more = decode(tree, WorkersFile, where=str(file))
    if decoded is None or problems:
        return {}, [*problems, *more]
    return {
        worker: Located(
            {name: parse_host_and_port(text) for name, text in named.items()}, incarnations.get(worker, ANY)
        )
        for worker, named in decoded.workers.items()
    }, []


def _incarnations(tree: dict[str, Any], where: str) -> tuple[dict[str, int], list[str]]:
    """Take each worker's `incarnation` out of the tree, so that only addresses stay, and say which are none."""
    workers = tree.get("workers")
    found: dict[str, int] = {}
    problems: list[str] = []
    for worker, named in workers.items() if isinstance(workers, dict) else ():
        number = named.pop(_INCARNATION, None) if isinstance(named, dict) else None
        if type(number) is int and number > 0:
            found[worker] = number
        elif number is not None:
            here = format_path(("workers", worker, _INCARNATION))
            problems.append(f"{where}: {here}: {describe(number)} where a whole number above 0 is needed")
    return found, problems


def _listed(workers: Mapping[str, Located]) -> list[ProviderWorker]:
    return [ProviderWorker(name, located.incarnation, alive=None) for name, located in workers.items()]
