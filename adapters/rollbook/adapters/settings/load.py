"""Finding and reading the file, once, at the root of a program. Nothing else looks for it or reads the environment."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from rollbook.adapters.secret_ref import SecretRef
from rollbook.adapters.settings.decode import decode
from rollbook.adapters.settings.environment import override
from rollbook.adapters.settings.errors import ConfigError
from rollbook.adapters.settings.model import ClientSettings, Settings

_T = TypeVar("_T")
FILE_NAME: Final = "rollbook.toml"
STATE_FOLDER: Final = ".rollbook"


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The settings, and where they came from."""

    settings: Settings
    file: Path
    """As it was given or found; relative to the working directory if it was found there."""
    warnings: tuple[str, ...] = ()
    """One line each, to be shown once: variables that look like overrides and override nothing."""

    @property
    def directory(self) -> Path:
        """`.rollbook` beside the file: the embedded server's store and address, and outboxes. May not exist yet."""
        return self.file.parent / STATE_FOLDER


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """What a program needs that only reads or writes facts. Comes from the file, or from the environment alone."""

    settings: ClientSettings
    base: Path
    """The folder that relative paths start from: the file's, or the working directory."""
    warnings: tuple[str, ...] = ()
    """As in `Config`."""

    @property
    def directory(self) -> Path:
        """As in `Config`."""
        return self.base / STATE_FOLDER


def find_file(given: Path | None, environ: Mapping[str, str], cwd: Path) -> Path | None:
    """The file to read: `given` (`-c`), or ROLLBOOK_CONFIG, or `rollbook.toml` in `cwd` if there is one."""
    if given is not None:
        return given
    if named := environ.get("ROLLBOOK_CONFIG"):
        return Path(named)
    return Path(FILE_NAME) if (cwd / FILE_NAME).exists() else None


def load(given: Path | None, *, environ: Mapping[str, str], cwd: Path) -> Config:
    """Find and read the settings. Raises `ConfigError` with every problem of the file and the environment."""
    file = find_file(given, environ, cwd)
    if file is None:
        raise ConfigError([_no_file(cwd)])
    settings, warnings = _read(_parse(file, cwd), Settings, environ, str(file))
    return Config(settings=settings, file=cwd / file, warnings=warnings)


def load_client(given: Path | None, *, environ: Mapping[str, str], cwd: Path) -> Client:
    """Find fleet and server. Without a file, ROLLBOOK_FLEET and ROLLBOOK_NATS_URL are enough. Raises `ConfigError`."""
    if find_file(given, environ, cwd) is not None:
        config = load(given, environ=environ, cwd=cwd)
        settings = ClientSettings(fleet=config.settings.fleet, nats=config.settings.nats)
        return Client(settings=settings, base=config.file.parent, warnings=config.warnings)
    if not (environ.get("ROLLBOOK_FLEET") and environ.get("ROLLBOOK_NATS_URL")):
        raise ConfigError([f"{_no_file(cwd)}. ROLLBOOK_FLEET and ROLLBOOK_NATS_URL together are enough too"])
    client, warnings = _read({}, ClientSettings, environ, "environment")
    return Client(settings=client, base=cwd, warnings=warnings)


def read_secret(secret: SecretRef, *, environ: Mapping[str, str], base: Path) -> str:
    """The secret itself. `base` is where relative paths start. Raises `ConfigError` if it is not there or empty."""
    if secret.env is not None:
        if value := environ.get(secret.env):
            return value
        raise ConfigError([f"the environment variable {secret.env} is not set or empty; a secret is said to be in it"])
    path = base / (secret.file or "")
    try:
        value = path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "not text"
        raise ConfigError([f"{path}: cannot be read ({reason}); a secret is said to be in it"]) from exc
    if not value:
        raise ConfigError([f"{path}: is empty; a secret is said to be in it"])
    return value


def _no_file(cwd: Path) -> str:
    return (
        f"there is no {FILE_NAME} in {cwd}: write one with `rollbook init`, or name one with -c FILE or ROLLBOOK_CONFIG"
    )


def _parse(file: Path, cwd: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((cwd / file).read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError([f"{file}: cannot be read ({exc.strerror}); name another file with -c FILE"]) from exc
    except UnicodeDecodeError as exc:
        raise ConfigError([f"{file}: is not UTF-8 text, so it is no TOML file"]) from exc
    except ValueError as exc:  # a number of 5000 digits is one too, and a file's name that no system takes
        raise ConfigError([f"{file}: is not TOML: {exc}"]) from exc
    except RecursionError as exc:
        raise ConfigError([f"{file}: is nested too deep"]) from exc


def _read(
    tree: Mapping[str, Any], into: type[_T], environ: Mapping[str, str], where: str
) -> tuple[_T, tuple[str, ...]]:
    merged, problems, warnings = override(tree, into, environ)
    settings, more = decode(merged, into, where=where)
    if settings is None or problems:
        raise ConfigError([*problems, *more])
    return settings, tuple(warnings)
