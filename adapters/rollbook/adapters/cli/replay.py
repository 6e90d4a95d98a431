"""`rollbook replay`: folds the log anew, and says whether it still gives what was kept of it."""

from __future__ import annotations

import contextlib
import time
import tomllib
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from rollbook.adapters.cli.common import ConfigFile, Json, load_client_config, load_config, run, start_logs
from rollbook.adapters.cli.diff import item_line
from rollbook.adapters.cli.exits import Exit, UsageError
from rollbook.adapters.cli.output import LONGEST_SHOWN, Piece, one_line, out_document, say
from rollbook.adapters.cli.past import Archive, NotHere, open_past_and_log, said_moment
from rollbook.adapters.settings import Config, ConfigError, Settings
from rollbook.adapters.settings.decode import decode
from rollbook.projections.history.moments import NOW, Moment, sequence_of
from rollbook.projections.history.otherwise import Otherwise, otherwise
from rollbook.projections.history.replay import Check, Kept, Replayed
from rollbook.projections.history.replay import replay as replay_past
from rollbook.projections.policy import Policy
from rollbook.projections.ports import HistoryHole

if TYPE_CHECKING:
    from rollbook.adapters.bootstrap import Reader
    from rollbook.adapters.history import History

EXAMPLE = """\
Example:

    rollbook replay --check
    rollbook replay --from-file run.jsonl.zst --check
    rollbook replay --to -1h --with gates.toml

Exit codes: 0 all that was compared agrees, 2 a snapshot does not, or other gates would want another thing than was."""

To = Annotated[
    str | None,
    Parameter(
        help="Up to this moment: a sequence, an RFC 3339 time, or -15m; by default to the end.",
        allow_leading_hyphen=True,
        show_default=False,
    ),
]


class Took(msgspec.Struct, frozen=True):
    """What `replay --json` prints."""

    replayed: Replayed
    seconds: float
    """That folding took."""
    otherwise: tuple[Otherwise, ...] | None
    """None without other gates."""


def replay(
    *,
    to: To = None,
    from_file: Annotated[
        Path | None, Parameter(help="Fold a file of `rollbook export`, or a folder of archives, and ask no server.")
    ] = None,
    archive: Archive = None,
    check: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Compare with every snapshot, and with the running controller.",
        ),
    ] = False,
    with_: Annotated[
        Path | None,
        Parameter(
            name="--with",
            help="A TOML file with other [pools.*] and [[proxies]]: what would be wanted then, against what was.",
        ),
    ] = None,
    config: ConfigFile = None,
    json: Json = False,
) -> int:
    """Fold the log anew, and compare it with what was kept of it.

    The digest is that of roster and ledger: the same log gives the same one, wherever it is folded.
    """
    if from_file is not None and archive is not None:
        raise UsageError("--from-file asks no server, and --archive is what is older than the server's log: name one")
    moment = NOW if to is None else said_moment(to)
    policies = None if with_ is None else _policies(load_config(config), with_)
    start_logs()
    took = run(_replay(config, from_file, archive, moment, policies, check=check))
    if check and not took.replayed.checks:
        say("rollbook: there is nothing to compare with: no snapshot is kept, and no controller answered")
    out_document(took, render(took.replayed, took.seconds, took.otherwise), json=json)
    return Exit.DONE if took.replayed.agrees and not took.otherwise else Exit.DIFFERENCES


async def _replay(
    config: Path | None,
    from_file: Path | None,
    archive: str | None,
    moment: Moment,
    policies: tuple[Policy, Policy] | None,
    *,
    check: bool,
) -> Took:
    async with _opened(config, from_file, archive) as (history, reader):
        # Asked before the end is looked up, so that what the controller has folded is part of it.
        others = await _running(reader, history.fleet) if check and reader is not None else []
        to = await sequence_of(history.past, moment)
        began = time.monotonic()
        found, state = await replay_past(history.past, history.codec, to, check=check, others=others)
        seconds = time.monotonic() - began
    return Took(found, seconds, None if policies is None else tuple(otherwise(state, *policies)))


@contextlib.asynccontextmanager
async def _opened(
    config: Path | None, from_file: Path | None, archive: str | None
) -> AsyncGenerator[tuple[History, Reader | None]]:
    """What is folded, and the log that it is of, if that is to be had."""
    if from_file is None:
        async with open_past_and_log(load_client_config(config), archive) as opened:
            yield opened
        return
    from rollbook.adapters.archive.errors import ArchiveError
    from rollbook.adapters.archive.folder import ArchivePast
    from rollbook.adapters.history import History

    fleet = None if _is_file(from_file) else load_client_config(config).settings.fleet
    past = ArchivePast.open(from_file, fleet)
    if not past.files:
        raise ArchiveError(f"{from_file} holds no archive of fleet {fleet!r}")
    try:
        yield History(past.files[0].head.fleet, past), None
    except HistoryHole as exc:
        raise NotHere(
            f"{from_file} begins at sequence {past.files[0].head.first}, and holds no state before it that this version"
            " reads. Fold an archive from its beginning: name the folder of all its files"
        ) from exc


async def _running(reader: Reader, fleet: str) -> list[Kept]:
    """What the running controller has folded the log to, if there is one."""
    from rollbook.adapters.cli.asking import ask_if_there
    from rollbook.adapters.service.messages import INFO, InfoRequest

    info = await ask_if_there(reader, fleet, INFO, InfoRequest(digest=True, deadline_seconds=10.0))
    if info is None or info.digest is None:
        return []
    return [Kept(info.owner, info.sequence, info.digest)]


def _is_file(path: Path) -> bool:
    return path.is_file()


def _policies(config: Config, other: Path) -> tuple[Policy, Policy]:
    """The policy in force, and the one with what a file says instead. Raises `ConfigError`."""
    try:
        tree = tomllib.loads(config.file.read_text(encoding="utf-8"))
        changes = tomllib.loads(other.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError([f"{other}: cannot be read ({exc.strerror})"]) from exc
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        raise ConfigError([f"{other}: is not TOML: {exc}"]) from exc
    strange = sorted(set(changes) - {"pools", "proxies"})
    if strange:
        raise ConfigError([f"{other}: {strange[0]!r} is no part of the gates; only pools and proxies can be others"])
    settings, problems = decode(_merged(tree, changes), Settings, where=str(other))
    if settings is None or problems:
        raise ConfigError(problems)
    return config.settings.policy(), settings.policy()


def _merged(tree: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Tables of pools are changed key by key, proxies by their name; what is not named stays.

    What has another shape is left for decoding to find fault with.
    """
    merged = dict(tree)
    if "pools" in changes:
        merged["pools"] = _over(tree.get("pools", {}), changes["pools"])
    if "proxies" in changes:
        said = changes["proxies"]
        if isinstance(said, list) and all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in said):
            proxies = {table["name"]: table for table in tree.get("proxies", [])}
            said = list(_over(proxies, {table["name"]: table for table in said}).values())
        merged["proxies"] = said
    return merged


def _over(tables: dict[str, Any], changes: Any) -> Any:
    """Tables by name, with what is said of some of them."""
    if not isinstance(changes, dict):
        return changes
    over = {
        name: {**tables.get(name, {}), **table} if isinstance(table, dict) else table for name, table in changes.items()
    }
    return {**tables, **over}


def render(found: Replayed, seconds: float, others: tuple[Otherwise, ...] | None) -> Iterator[list[Piece]]:
    """What a replay found, as lines for a person."""
    rate = f" in {seconds:.2f} s ({found.facts / seconds:,.0f}/s)" if seconds > 0 else ""
    yield [("fleet ", "dim"), (found.fleet, "bold"), f"  sequences {found.first} to {found.sequence}{rate}"]
    yield [f"digest {found.digest}"]
    if found.first > 1:
        yield [(f"folded from the state kept at {found.first - 1}; what is older is not in this log", "yellow")]
    if found.unreadable:
        yield [(f"{found.unreadable} messages are no facts", "yellow")]
    for kind, count in found.unknown.items():
        yield [(f"{count} of a type that this version does not know: {one_line(kind, LONGEST_SHOWN)}", "yellow")]
    for check in found.checks:
        yield from _check(check)
    if others is not None:
        yield []
        yield [("Under the other gates:" if others else "Under the other gates the same would be wanted.", "bold")]
        for one in others:
            yield _otherwise(one)


def _check(check: Check) -> Iterator[list[Piece]]:
    head = f"{check.origin} at {check.sequence}: "
    if check.skipped is not None:
        yield [head, (f"not compared: {check.skipped}", "yellow")]
    elif check.agrees:
        yield [head, ("agrees", "green")]
    elif check.folded is None:
        yield [
            head,
            ("DIFFERS", "bold red"),
            ": the log ends before that: it lost its end since, or this is another log",
        ]
    else:
        yield [head, ("DIFFERS", "bold red"), f": kept {check.kept}, folded {check.folded}"]
        if check.worker is not None:
            yield ["first worker that differs: ", (check.worker.name, "bold"), "  (kept → folded)"]
            yield from (item_line(change) for change in check.worker.changes)
        elif check.other:
            yield [f"no worker differs, but: {', '.join(check.other)}"]


def _otherwise(one: Otherwise) -> list[Piece]:
    sign: Piece = ("  ", "")
    if one.gains:
        sign = ("+ ", "green")
    elif one.loses:
        sign = ("- ", "red")
    was = "registered" if one.registered else "not registered"
    then = "would be wanted" if one.would is None else f"would be kept out by {one_line(one.would, LONGEST_SHOWN)}"
    gate = "" if one.was is None else f" ({one_line(one.was, LONGEST_SHOWN)})"
    return [sign, (one.worker, "bold"), f" life {one.incarnation} at {one.proxy}: was {was}{gate}; {then}"]
