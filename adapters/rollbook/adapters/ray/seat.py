"""A worker's place in this life of its cell, and text rendered from it: commands, environment, URLs.

::

    {name} {incarnation} {rank} {cell_size} {cell_incarnation} {host}
    {primary}                       its own address of that kind, as host:port
    {primary.host} {primary.port}   its parts
    {primary.url}                   as the spec's `urls` write it
    {rpc[1]} {rpc[1].port}          the second of several ports that follow each other
    {rank0.primary}                 the same of rank 0 of its cell
    {workers.rollout-1-0.primary}   the same of any worker of the fleet

Braces that are to stay are written twice. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from string import Formatter
from typing import Final

import msgspec

from rollbook.events import RollbookError
from rollbook.projections.ports import HostAndPort

PLAIN: Final = ("name", "incarnation", "rank", "cell_size", "cell_incarnation", "host")
"""Fields that are no addresses."""
RESERVED: Final = frozenset({*PLAIN, "rank0", "workers"})
"""What no kind of address can be called."""
_ADDRESS: Final = re.compile(r"(?P<kind>[A-Za-z_]\w*)(\[(?P<index>\d{1,4})\])?(\.(?P<part>host|port|url))?", re.ASCII)
_WORKER: Final = re.compile(r"workers\.(?P<worker>[A-Za-z0-9_-]{1,128})\.(?P<rest>.+)")
_URL: Final = "http://{address}"


class TemplateError(RollbookError, ValueError):
    """A template that cannot be rendered. The message names the field, and what would do."""


class Neighbour(msgspec.Struct, frozen=True):
    """Where another worker, or oneself, is reached."""

    addresses: dict[str, HostAndPort]
    """By kind."""
    urls: dict[str, str] = {}
    """Templates by kind, as its spec says."""

    def url(self, kind: str, index: int = 0) -> str:
        """The URL of that kind. Raises `KeyError` if it has no such address."""
        return url_of(self.at(kind, index), self.urls.get(kind, _URL))

    def at(self, kind: str, index: int = 0) -> HostAndPort:
        """The address of that kind, or one that follows it. Raises `KeyError`."""
        found = self.addresses[kind]
        return HostAndPort(found.host, found.port + index)


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """The place of one worker in one life of its cell. A worker's class gets it as `seat` if it asks for that."""

    name: str
    incarnation: int
    rank: int
    cell_size: int
    cell_incarnation: int
    """The same for all ranks of this start; 0 in a cell of one worker."""
    host: str
    """Of this node, as Ray knows it."""
    rank0: str
    """Name of the worker of rank 0."""
    workers: dict[str, Neighbour]
    """All workers of the cell, oneself included, and those of other cells that the spec's templates name."""

    @property
    def own(self) -> dict[str, HostAndPort]:
        """Its own addresses, by kind, and those that its cell shares."""
        return self.workers[self.name].addresses

    @property
    def of_rank0(self) -> dict[str, HostAndPort]:
        """Those of rank 0."""
        return self.workers[self.rank0].addresses


class _Reference(msgspec.Struct, frozen=True):
    """A field that stands for an address."""

    worker: str
    """Whose it is; empty for oneself or rank 0."""
    kind: str
    index: int
    part: str
    is_rank0: bool = False


def url_of(address: HostAndPort, template: str = _URL) -> str:
    """`template` with `{address}`, `{host}` and `{port}` filled in."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    return template.replace("{address}", str(address)).replace("{host}", host).replace("{port}", str(address.port))


def render(template: str, seat: Seat) -> str:
    """The text. Raises `TemplateError`."""
    done: list[str] = []
    for literal, field in _parts(template):
        done.append(literal)
        if field is not None:
            done.append(_value(field, seat))
    return "".join(done)


def check(template: str, own: Mapping[str, int] | None = None, rank0: Mapping[str, int] | None = None) -> None:
    """Raise `TemplateError` for what could never be rendered, or would name a port that is nobody's.

    `own` are the kinds of address that the worker itself has, each with its count of ports, `rank0` those of rank 0;
    None where that is not known.
    """
    for _, field in _parts(template):
        if field is None or field in PLAIN:
            continue
        found = _parsed(field)
        kinds = None if found.worker else rank0 if found.is_rank0 else own
        if kinds is None:
            continue
        if found.kind not in kinds:
            known = ", ".join(sorted(kinds)) or "none"
            raise TemplateError(f"{{{field}}}: there is no port {found.kind!r}, only {known}")
        if found.index >= (count := kinds[found.kind]):
            raise TemplateError(f"{{{field}}}: port {found.kind!r} has a count of {count}; the first is [0]")


def needs(templates: Iterable[str]) -> set[tuple[str, str]]:
    """Whose addresses must be known first: (worker, kind) of all that are named with `workers`."""
    found = (_parsed(field) for text in templates for _, field in _parts(text) if field and field not in PLAIN)
    return {(one.worker, one.kind) for one in found if one.worker}


def _parts(template: str) -> list[tuple[str, str | None]]:
    try:
        parts = list(Formatter().parse(template))
    except ValueError as exc:
        raise TemplateError(f"{template[:200]!r}: {exc}; braces that are to stay are written twice") from exc
    for _, field, spec, conversion in parts:
        if field is not None and (spec or conversion):
            raise TemplateError(f"{{{field}}}: a field has neither '!' nor ':' behind it")
    return [(literal, field) for literal, field, _, _ in parts]


def _parsed(field: str) -> _Reference:
    worker, rest, is_rank0 = "", field, False
    if (named := _WORKER.fullmatch(field)) is not None:
        worker, rest = named["worker"], named["rest"]
    elif field.startswith("rank0."):
        rest, is_rank0 = field.removeprefix("rank0."), True
    match = _ADDRESS.fullmatch(rest)
    if match is None or match["kind"] in RESERVED:
        raise TemplateError(
            f"{{{field}}} is nothing that can be filled in; there are {', '.join(PLAIN)}, the names of ports, "
            "rank0.<port> and workers.<name>.<port>, with .host, .port or .url behind"
        )
    return _Reference(worker, match["kind"], int(match["index"] or 0), match["part"] or "", is_rank0)


def _value(field: str, seat: Seat) -> str:
    if field in PLAIN:
        return str(getattr(seat, field))
    found = _parsed(field)
    name = found.worker or (seat.rank0 if found.is_rank0 else seat.name)
    neighbour = seat.workers.get(name)
    if neighbour is None or found.kind not in neighbour.addresses:
        raise TemplateError(f"{{{field}}}: worker {name!r} has no address {found.kind!r}")
    address = neighbour.at(found.kind, found.index)
    match found.part:
        case "host":
            return address.host
        case "port":
            return str(address.port)
        case "url":
            return neighbour.url(found.kind, found.index)
        case _:
            return str(address)
