"""Which actor is which worker, where a framework names its actors itself: both ways, so that they can be listed too."""

from __future__ import annotations

import re
import string
from typing import Final

from rollbook.events import InvalidName, parse_worker
from rollbook.events.names import format_worker

_PARTS: Final = {
    "worker": r"[A-Za-z0-9_-]{1,128}",
    "pool": r"[A-Za-z0-9_-]+",
    "cell": r"0|[1-9][0-9]{0,8}",
    "rank": r"0|[1-9][0-9]{0,8}",
}
_SETS: Final = ({"worker"}, {"pool", "cell", "rank"}, {"pool", "cell"}, {"cell", "rank"}, {"cell"})


def actor_pattern(template: str) -> re.Pattern[str]:
    """What the names of a template's actors look like, each part a group. Raises `ValueError` for an unusable one."""
    told = f"{template[:80]!r} is no name of each worker's actor; write it with {{worker}}, as in engine-{{worker}}"
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as exc:
        raise ValueError(told) from exc
    fields = [field for _, field, _, _ in parsed if field is not None]
    if any(spec or conversion for _, _, spec, conversion in parsed):
        raise ValueError(told)
    if len(fields) != len(set(fields)) or set(fields) not in _SETS:
        raise ValueError(f"{told}, or with {{cell}} and, where they are told, {{pool}} and {{rank}}")
    text = "".join(
        re.escape(literal) + ("" if field is None else f"(?P<{field}>{_PARTS[field]})")
        for literal, field, _, _ in parsed
    )
    return re.compile(text)


class ActorNames:
    """The names that a template gives. `pool` is that of all workers where the template does not say it.

    A template without `{rank}` names the actors of rank 0 only. Raises `ValueError` for an unusable template.
    """

    def __init__(self, template: str, pool: str | None = None) -> None:
        self.template = template
        self._pattern = actor_pattern(template)
        self._pool = pool

    def actor(self, worker: str) -> str | None:
        """The name of the worker's actor; None for a worker that the template cannot name."""
        try:
            parsed = parse_worker(worker)
        except InvalidName:
            return None
        name = self.template.format(worker=worker, pool=parsed.pool, cell=parsed.cell, rank=parsed.rank)
        # Both ways or not at all: another pool's worker, or one of a free name, is not this template's.
        return name if self.worker(name) == worker else None

    def worker(self, actor: str) -> str | None:
        """The worker of an actor; None for an actor that is none of them."""
        found = self._pattern.fullmatch(actor)
        if found is None:
            return None
        parts = found.groupdict()
        if "worker" in parts:
            return str(parts["worker"])
        try:
            return format_worker(parts.get("pool") or self._pool or "", parts["cell"], int(parts.get("rank") or 0))
        except InvalidName:
            return None
