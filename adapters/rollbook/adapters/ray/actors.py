"""Where the workers are, where somebody else starts them as named actors: each is asked for its own address.

The cluster's list of names says who is there; an actor's own answer says where it is. Nothing is kept between two
look-ups. An actor that does not answer is unknown, and keeps nobody else from being found.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Coroutine, Iterable, Mapping
from typing import Any, Final, Self

import msgspec
import structlog

from rollbook.adapters.locating import ANY, DEADLINE, Locating, named_addresses
from rollbook.adapters.ray.border import (
    NAMESPACE,
    ActorBroken,
    ActorGone,
    ActorSilent,
    RayThread,
    aside,
    ask_named,
    own_words,
)
from rollbook.adapters.ray.joining import RayCluster
from rollbook.adapters.ray.naming import ActorNames
from rollbook.events import RollbookError
from rollbook.events.facts.base import MAX_INTEGER
from rollbook.projections.ports import Located, ProviderUnavailable, ProviderWorker

LONGEST_REASON: Final = 500
"""Letters of what an actor says is wrong."""
_INCARNATION: Final = "incarnation"
_DEAD: Final = Located({}, ANY, alive=False)
_SILENT: Final = Located({}, ANY)

_log = structlog.get_logger()


class _Unknown(msgspec.Struct, frozen=True):
    """An actor that is there, and did not say where."""

    reason: str


class RayActorsProvider(Locating):
    """The actors that `names` describes, asked by `method`. Made by `create`."""

    def __init__(
        self, names: ActorNames, method: str, namespace: str | None, address: str | None, deadline: float
    ) -> None:
        self.who = f"the Ray actors named {names.template!r}"
        self._names = names
        self._method = method
        self._namespace = namespace
        self._deadline = deadline
        self._threads = RayThread()
        self._cluster = RayCluster(self._threads, namespace or NAMESPACE, address)
        self._doubtful = False
        self._open: dict[tuple[str, str], _Call] = {}
        """Questions that were given up, by namespace and actor: who hangs is asked once, and costs one deadline."""
        self._told: set[str] = set()
        """Workers of which it was logged that they cannot be asked."""

    @classmethod
    async def create(
        cls,
        actor: str,
        *,
        pool: str | None = None,
        method: str = "get_addr",
        namespace: str | None = None,
        address: str | None = None,
        deadline: float = DEADLINE,
    ) -> Self:
        """`actor`, `pool`, `method` and `namespace` are as in the settings; `deadline` (seconds) bounds each look-up.

        Joins Ray like `RayWorkerProvider.create`. Raises `ValueError` for an unusable template.
        """
        provider = cls(ActorNames(actor, pool), method, namespace, address, deadline)
        await provider._cluster.join_early(deadline)
        return provider

    async def locate(self, names: Iterable[str]) -> dict[str, Located]:
        """All that it knows of `names`; unknown ones are left out, and one that does not answer has no address.

        Raises `ProviderUnavailable` if the cluster does not answer, or none of them does.
        """
        until = time.monotonic() + self._deadline
        actors = {name: actor for name in names if (actor := self._names.actor(name)) is not None}
        found = await self._asked(actors, until)
        unknown = [one for one in found.values() if isinstance(one, _Unknown)]
        if unknown and len(unknown) == len(found):
            told = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
            raise ProviderUnavailable(f"{unknown[0].reason}{told}")
        return {name: _SILENT if isinstance(one, _Unknown) else one for name, one in found.items()}

    async def list_workers(self) -> list[ProviderWorker]:
        """Every worker that has an actor now; whether one lives that does not answer is not known.

        Raises `ProviderUnavailable` if the cluster does not answer.
        """
        until = time.monotonic() + self._deadline
        found = await self._asked(None, until)
        return [
            ProviderWorker(name, ANY, alive=None, serving=False)
            if isinstance(one, _Unknown)
            else ProviderWorker(name, one.incarnation, alive=one.alive, serving=bool(one.addresses))
            for name, one in found.items()
        ]

    async def close(self) -> None:
        """Leave Ray if it was joined here."""
        await self._cluster.leave(self._deadline)

    async def _asked(self, wanted: Mapping[str, str] | None, until: float) -> dict[str, Located | _Unknown]:
        """By worker, of those whose actor the cluster knows: of `wanted` (actors by worker), or of all."""
        places = await self._places(until)
        if wanted is None:
            wanted = {worker: name for name in places if (worker := self._names.worker(name)) is not None}
        there = {worker: name for worker, name in wanted.items() if name in places}
        answers = await asyncio.gather(*(self._ask(name, places[name], until) for name in there.values()))
        self._doubtful = not answers or any(isinstance(answer, _Unknown) for answer in answers)
        found = dict(zip(there, answers, strict=True))
        self._tell(found)
        return found

    def _tell(self, found: Mapping[str, Located | _Unknown]) -> None:
        """Log who cannot be asked, once: where many are looked up at once, nobody else hears why."""
        for worker, one in found.items():
            if not isinstance(one, _Unknown):
                self._told.discard(worker)
            elif worker not in self._told:
                self._told.add(worker)
                _log.warning("provider.actor.unknown", worker=worker, reason=one.reason)

    async def _places(self, until: float) -> dict[str, list[str]]:
        """The namespaces in which there is an actor of each name, of those that count. Raises `ProviderUnavailable`."""
        import ray

        async def look() -> list[Any]:
            await self._cluster.join(until - time.monotonic(), doubtful=self._doubtful)
            self._doubtful = True
            left = until - time.monotonic()
            return await aside(self._threads, listing, left, "the list of Ray's named actors")

        def listing() -> list[Any]:
            for place, call in list(self._open.items()):
                if _is_over(call.answer):
                    self._open.pop(place, None)
            return list(ray.util.list_named_actors(all_namespaces=True))

        failed = "Ray does not say which actors there are"
        listed = await self._cluster.answer(look(), self._deadline, failed)
        places: dict[str, list[str]] = {}
        for one in listed:
            if self._namespace in {None, one["namespace"]}:
                places.setdefault(one["name"], []).append(one["namespace"])
        return places

    async def _ask(self, name: str, namespaces: list[str], until: float) -> Located | _Unknown:
        if len(namespaces) > 1:
            told = f"in the namespaces {', '.join(map(repr, sorted(namespaces)))}; choose one in provider.namespace"
            return _Unknown(f"there is an actor {name!r} {told}")
        place = (namespaces[0], name)
        asked: list[_Call] = []

        def ask(handle: Any) -> Coroutine[Any, Any, Any]:
            asked.append(self._call(place, handle))
            return _said(asked[-1].answer, f"{self._method}() of actor {name!r}")

        try:
            answer = await ask_named(self._threads, name, place[0], ask, until - time.monotonic())
            asked.clear()
        except ActorGone:
            return _DEAD
        except (ActorSilent, ActorBroken, _NotAsked) as exc:
            return _Unknown(str(exc))
        finally:
            if asked:
                self._open[place] = asked[-1]
        try:
            return _located(answer)
        except (Exception, SystemExit) as exc:  # noqa: BLE001 - an answer may be of any class
            told = f"what {self._method}() of actor {name!r} answers is no address: {exc}"
            return _Unknown(told[:LONGEST_REASON])

    def _call(self, place: tuple[str, str], handle: Any) -> _Call:
        """Call the method of the actor at `place`. Raises `_NotAsked`."""
        now, (_, name) = time.monotonic(), place
        open_call = self._open.get(place)
        if open_call is not None and open_call.handle == handle:
            raise _NotAsked(
                f"actor {name!r} gave no answer to {self._method}(), which it was asked {now - open_call.since:.0f} s "
                "ago, and is not asked again before; it must answer while it is busy: async, or max_concurrency above 1"
            )
        try:
            return _Call(handle, getattr(handle, self._method).remote(), now)
        except AttributeError as exc:
            raise _NotAsked(f"actor {name!r} has no method {self._method!r}; provider.method names it") from exc
        except TypeError as exc:
            raise _NotAsked(f"{self._method}() of actor {name!r} cannot be called without arguments: {exc}") from exc


class _Call(msgspec.Struct, frozen=True):
    """A question that was given up."""

    handle: Any
    answer: Any
    """Ray's reference to it."""
    since: float


def _is_over(answer: Any) -> bool:
    """Whether it has come, or never will: it was of a cluster that was left since. Blocks for a moment."""
    import ray

    try:
        return bool(ray.wait([answer], timeout=0, fetch_local=False)[0])
    except ValueError:
        return True


class _NotAsked(RollbookError):
    """The actor is there, and could not be asked."""


async def _said(answer: Awaitable[Any], asked: str) -> Any:
    from ray.exceptions import RaySystemError

    try:
        return await own_words(answer, asked)
    except RaySystemError as exc:  # of a class that is not known here, for example
        told = str(exc).partition("\n")[0][:LONGEST_REASON]
        raise ActorBroken(f"what {asked} answers cannot be read here: {told}") from exc


def _located(answer: object) -> Located:
    """What an actor answered. Raises `TypeError` or `ValueError`."""
    incarnation: Any = None
    if isinstance(answer, Mapping):
        named = dict(answer)
        incarnation, answer = named.pop(_INCARNATION, None), named
    if incarnation is not None and (type(incarnation) is not int or not 0 < incarnation <= MAX_INTEGER):
        raise ValueError(f"incarnation {str(incarnation)[:40]!r} is no whole number above 0")
    return Located(named_addresses(answer), incarnation or ANY)
