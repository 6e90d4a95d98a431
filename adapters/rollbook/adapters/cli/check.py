"""`rollbook check`: say everything that is wrong with a configuration, and start nothing."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from rollbook.adapters.cli.common import ConfigFile, Json
from rollbook.adapters.cli.exits import Exit
from rollbook.adapters.cli.output import out, out_json, say
from rollbook.adapters.settings import (
    Config,
    ConfigError,
    ProxySettings,
    SecretRef,
    StaticProvider,
    WebSettings,
    load,
    read_secret,
)
from rollbook.adapters.settings.together import nobody_known, untold_models

EXAMPLE = """\
Example:

    rollbook check
    rollbook check -c deploy/rollbook.toml --json"""


def check(*, config: ConfigFile = None, json: Json = False) -> int:
    """Validate a configuration, with the environment's overrides, without starting anything.

    Every problem is printed on its own line, with the key that it is about. Secrets, certificates and a file of workers
    that cannot be read here are warnings, because they may be there where the controller runs. With --json it prints
    one document: ok, problems, warnings.
    """
    try:
        loaded = load(config, environ=os.environ, cwd=Path.cwd())
    except ConfigError as exc:
        if not json:
            raise
        out_json({"ok": False, "problems": list(exc.problems), "warnings": []})
        return Exit.USAGE
    warnings = [
        *loaded.warnings,
        *_unreadable_secrets(loaded),
        *_unusable_certificates(loaded),
        *_unusable_workers(loaded),
        *web_warnings(loaded.settings.web),
        *nobody_known(loaded.settings),
        *untold_models(loaded.settings),
    ]
    if json:
        out_json({"ok": True, "problems": [], "warnings": warnings})
        return Exit.DONE
    for warning in warnings:
        say(f"rollbook: warning: {warning}")
    out(_summary(loaded))
    return Exit.DONE


def _summary(config: Config) -> str:
    settings = config.settings
    log = settings.nats.url or "an embedded NATS"
    proxies = ", ".join(f"{one.name} ({one.kind}: {', '.join(one.pools)})" for one in settings.proxies) or "none"
    provider = settings.provider.__struct_config__.tag
    return f"{config.file}: good. fleet {settings.fleet}, log in {log}, provider {provider}, proxies: {proxies}"


def _unreadable_secrets(config: Config) -> list[str]:
    warnings: list[str] = []
    for key, secret in _secrets(config.settings, ""):
        try:
            read_secret(secret, environ=os.environ, base=config.file.parent)
        except ConfigError as exc:
            warnings.append(f"{key}: {exc}")
    return warnings


def _unusable_certificates(config: Config) -> list[str]:
    from rollbook.adapters.proxies.opening import client_tls

    warnings: list[str] = []
    for proxy in config.settings.proxies:
        try:
            client_tls(proxy, config.file.parent)
        except ConfigError as exc:
            warnings.append(str(exc))
    return warnings


def _unusable_workers(config: Config) -> list[str]:
    """What is wrong with the file of workers now. It is read anew at every look-up, so it can become right."""
    from rollbook.adapters.settings.decode import format_path
    from rollbook.adapters.settings.together import check_addresses
    from rollbook.adapters.static import read_workers

    provider = config.settings.provider
    if not isinstance(provider, StaticProvider) or provider.file is None:
        return []
    file = config.file.parent / provider.file
    workers, problems = read_workers(file)
    pools = msgspec.to_builtins(config.settings.pools)
    unnamed = check_addresses(pools, {name: located.addresses for name, located in workers.items()})
    return [*problems, *(f"{format_path(path)}: {problem}, says {file}" for path, problem in unnamed)]


def web_warnings(web: WebSettings) -> list[str]:
    """What is to be said about an open port."""
    told = (
        f"web.listen: {web.listen} can be reached from other machines, and asks nobody for a password; listen on "
        "127.0.0.1, or let a firewall or a reverse proxy stand in front"
    )
    return [told] if web.exposed else []


def _secrets(value: object, key: str) -> list[tuple[str, SecretRef]]:
    """Every secret in a struct, with its key."""
    if isinstance(value, SecretRef):
        return [(key, value)]
    if isinstance(value, tuple):
        return [found for index, item in enumerate(value) for found in _secrets(item, f"{key}[{index}]")]
    if not isinstance(value, msgspec.Struct):
        return []
    fields = {field: getattr(value, field) for field in value.__struct_fields__}
    if isinstance(value, ProxySettings):
        fields["options"] = value.own_options()
    return [found for field, one in fields.items() for found in _secrets(one, f"{key}.{field}" if key else field)]
