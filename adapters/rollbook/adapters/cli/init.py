"""`rollbook init`: write a first configuration from what the person says and from what is found."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from cyclopts import Parameter

from rollbook.adapters.cli.common import Port, run, start_logs
from rollbook.adapters.cli.exits import Exit, UsageError
from rollbook.adapters.cli.find import PROCESSES, find_ray, find_routers
from rollbook.adapters.cli.output import out, say
from rollbook.adapters.cli.template import Choices, ProxyChoice, Source, render
from rollbook.adapters.proxies.registry import UnusableKind, find_kind
from rollbook.adapters.settings import FILE_NAME, ConfigError, Settings
from rollbook.adapters.settings.decode import decode

EXAMPLE = """\
Example:

    rollbook init --fleet math-rl --proxy router-a=sglang@http://127.0.0.1:30000
    rollbook init --proxy edge=haproxy@unix:///run/haproxy/admin.sock,backend=workers
    rollbook init --find
    rollbook init --provider static --worker rollout-0-0=10.0.0.5:8000
    rollbook init --workers-file workers.toml
    rollbook init --actor 'engine-{worker}'"""

PORTS: Final = (30000, 30001, 8000, 8080)
"""Where `--find` looks if it is not told: the ports that routers are usually started on."""

_PROXY: Final = re.compile(r"(?P<name>[^=@]+)=(?P<kind>[^=@]+)@(?P<url>[^,]+)(?P<options>(,\w+=[^,]+)*)")
_WORKER: Final = re.compile(r"(?P<name>[^=]+)=(?P<address>.+)")


def init(  # noqa: PLR0913 - the options of the command
    *,
    config: Annotated[Path, Parameter(name=["--config", "-c"], help="The file to write.")] = Path(FILE_NAME),
    fleet: Annotated[str | None, Parameter(help="Name of the fleet; by default this folder's name.")] = None,
    proxy: Annotated[
        Sequence[str],
        Parameter(
            negative=(),
            help="A router, as NAME=KIND@URL, with the options that its kind asks for as ,KEY=VALUE behind it. May be "
            "given more than once.",
        ),
    ] = (),
    provider: Annotated[
        Source | None,
        Parameter(
            help="Where addresses come from; by default static if --worker or --workers-file is given, ray-actors if "
            "--actor is, else ray."
        ),
    ] = None,
    worker: Annotated[
        Sequence[str],
        Parameter(negative=(), help="A worker whose address is fixed, as NAME=HOST:PORT. May be given more than once."),
    ] = (),
    workers_file: Annotated[
        str | None, Parameter(help="The file that has the workers' addresses, read anew at every look-up.")
    ] = None,
    actor: Annotated[
        str | None, Parameter(help="Name of each worker's Ray actor, with {worker} for the worker's name.")
    ] = None,
    pool: Annotated[
        Sequence[str],
        Parameter(
            negative=(), help="A pool, served by every router given; by default rollout. May be given more than once."
        ),
    ] = ("rollout",),
    nats_url: Annotated[str | None, Parameter(help="The NATS server; by default an embedded one is started.")] = None,
    find: Annotated[
        bool,
        Parameter(negative=(), show_default=False, help="Look for routers on loopback and write down what answers."),
    ] = False,
    port: Annotated[
        Sequence[Port], Parameter(negative=(), help="A port for --find to look at. May be given more than once.")
    ] = PORTS,
    force: Annotated[bool, Parameter(negative=(), show_default=False, help="Overwrite the file.")] = False,
) -> int:
    """Write a commented rollbook.toml, and check it.

    Nothing is written if it would not pass `rollbook check`, or if the file is there already.
    """
    if config.exists() and not force:
        raise UsageError(f"{config} exists already; edit it, choose another with -c, or overwrite it with --force")
    start_logs()
    workers = dict(_parse_worker(text) for text in worker)
    source = _source(provider, worker, workers_file, actor)
    proxies = [_parse_proxy(text) for text in proxy]
    if find:
        proxies += _not_yet(run(find_routers(port)), proxies)
    choices = Choices(
        fleet=fleet or _folder_name(config),
        provider=source,
        actor=actor,
        ray=() if source == "static" else find_ray(os.environ, PROCESSES),
        nats_url=nats_url,
        pools=tuple(dict.fromkeys(pool)),
        proxies=tuple(proxies),
        workers=workers,
        workers_file=workers_file,
    )
    text = render(choices)
    _validate(text, str(config))
    _write(config, text, overwrite=force)
    _report(choices)
    out(str(config))
    return Exit.DONE


def _source(provider: Source | None, worker: Sequence[str], workers_file: str | None, actor: str | None) -> Source:
    """Where addresses come from, by what is given. Raises `UsageError` for what contradicts itself."""
    given: dict[str, Source] = {
        **({"--worker": "static"} if worker else {}),
        **({"--workers-file": "static"} if workers_file is not None else {}),
        **({"--actor": "ray-actors"} if actor is not None else {}),
    }
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} each say where addresses come from; give one of them")
    for option, kind in given.items():
        if provider not in {None, kind}:
            raise UsageError(f"{option} is for --provider {kind}, and --provider {provider} is given; drop one of them")
    if provider == "ray-actors" and actor is None:
        raise UsageError("--provider ray-actors needs the actors' names: write --actor 'engine-{worker}'")
    for kind in given.values():
        return kind
    return provider or "ray"


def _validate(text: str, where: str) -> None:
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise UsageError(f"what is given cannot stand in a TOML file ({exc}); a control character in it?") from exc
    _, problems = decode(tree, Settings, where=where)
    if problems:
        raise ConfigError(problems)


def _not_yet(found: list[ProxyChoice], told: list[ProxyChoice]) -> list[ProxyChoice]:
    urls = {one.url.rstrip("/").replace("localhost", "127.0.0.1") for one in told}
    return [one for one in found if one.url not in urls]


def _parse_proxy(text: str) -> ProxyChoice:
    match = _PROXY.fullmatch(text)
    if match is None:
        raise UsageError(
            "--proxy is written NAME=KIND@URL, as in router-a=sglang@http://127.0.0.1:30000; a key is added to the "
            "file by reference afterwards"
        )
    options = dict(option.split("=", 1) for option in match["options"].split(",")[1:])
    _check_options(match["name"], match["kind"], match["url"], options)
    typed = {key: _typed(match["kind"], key, value) for key, value in options.items()}
    return ProxyChoice(match["name"], match["kind"], match["url"], typed)


def _check_options(name: str, kind: str, url: str, given: Mapping[str, str]) -> None:
    """Say what is to be added to the command. What else is wrong with a proxy, the file's check finds."""
    try:
        options = find_kind(kind).options
    except UnusableKind:
        return
    required = [field.encode_name for field in msgspec.structs.fields(options) if field.required]
    missing = [key for key in required if key not in given]
    if missing:
        how = "".join(f",{key}={given.get(key, '...')}" for key in required)
        raise UsageError(f"a proxy of kind {kind} needs its {' and '.join(missing)}: write {name}={kind}@{url}{how}")


def _typed(kind: str, option: str, text: str) -> Any:
    """The option's value as its kind wants it; as text if it cannot be that, for the file's check to say so."""
    try:
        (field,) = [one for one in msgspec.structs.fields(find_kind(kind).options) if one.encode_name == option]
        return msgspec.convert(text, field.type, strict=False)
    except (UnusableKind, ValueError):
        return text


def _parse_worker(text: str) -> tuple[str, str]:
    match = _WORKER.fullmatch(text)
    if match is None:
        raise UsageError(f"--worker {text[:80]!r} is written NAME=HOST:PORT, as in rollout-0-0=10.0.0.5:8000")
    return match["name"], match["address"]


def _folder_name(config: Path) -> str:
    """The folder's name with every letter that a fleet's name cannot have turned into `-`."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", config.absolute().parent.name)[:128].strip("-") or "fleet"


def _write(config: Path, text: str, *, overwrite: bool) -> None:
    try:
        with config.open("w" if overwrite else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as exc:
        raise UsageError(f"{config} cannot be written: {exc.strerror}; choose another place with -c") from exc


def _report(choices: Choices) -> None:
    routers = ", ".join(f"{one.name} at {one.url}" for one in choices.proxies)
    say(f"fleet {choices.fleet}; routers: {routers or 'none yet, add them as [[proxies]]'}")
    match choices.provider, choices.ray:
        case "static", _:
            say(f"addresses come from {choices.workers_file or 'the file'}")
        case _, ():
            say("addresses come from Ray, which was not found here: start it, or set RAY_ADDRESS or provider.address")
        case _, (where,):
            say(f"addresses come from Ray, found at {where}")
        case _, several:
            say(f"addresses come from Ray, found more than once: choose provider.address from {', '.join(several)}")
    say("next: rollbook up")
