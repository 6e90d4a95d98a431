"""A worker provider over a framework's own look-up: where a worker is, asked at the moment that it is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import msgspec

from rollbook.adapters.locating import ANY, DEADLINE, Locating, named_addresses
from rollbook.adapters.ray.border import RayThread
from rollbook.projections.ports import HostAndPort, Located, ProviderUnavailable, ProviderWorker

Look = Callable[[Sequence[str] | None], Mapping[str, Any]]
"""What the framework answers about workers of these names, or about everybody; without those it does not know."""


class _Unknown(msgspec.Struct, frozen=True):
    """A worker of which the framework did not tell where it is."""

    reason: str


class FrameworkProvider(Locating):
    """Asks the framework at every look-up, and caches nothing. Made by `by_name` or `of_all`.

    For each worker the framework answers an address, or several by name, of which `primary` takes the requests; None
    for one that is dead or has none yet. An address is a URL, `host:port`, a pair, or anything with `host` and `port`.
    Its functions may block: they run on a thread, one look-up after the other, for `deadline` seconds at most. One
    worker of which it tells nonsense, or whose look-up raises, has no address then, and hides no other.
    """

    who = "the framework"

    def __init__(self, look: Look, deadline: float) -> None:
        self._look = look
        self._deadline = deadline
        self._thread = RayThread()

    @classmethod
    def by_name(
        cls, get_addr: Callable[[str], Any], names: Callable[[], Iterable[str]], *, deadline: float = DEADLINE
    ) -> Self:
        """`get_addr(worker_name)` is asked for each, with `KeyError` for a stranger; `names()` says who is there."""

        def look(wanted: Sequence[str] | None) -> dict[str, Any]:
            found: dict[str, Any] = {}
            for name in names() if wanted is None else wanted:
                try:
                    found[name] = get_addr(name)
                except KeyError:
                    continue
                except Exception as exc:  # noqa: BLE001 - of this worker nothing is known
                    found[name] = _Unknown(f"get_addr({name!r}) raised {exc!r}")
            return found

        return cls(look, deadline)

    @classmethod
    def of_all(cls, everybody: Callable[[], Mapping[str, Any]], *, deadline: float = DEADLINE) -> Self:
        """`everybody()` answers for all workers at once, by name."""

        def look(wanted: Sequence[str] | None) -> Mapping[str, Any]:
            known = everybody()
            return known if wanted is None else {name: known[name] for name in wanted if name in known}

        return cls(look, deadline)

    async def locate(self, names: Iterable[str]) -> dict[str, Located]:
        """All that it knows of `names`; unknown ones are left out. Raises `ProviderUnavailable`."""
        known = await self._ask(list(names))
        unknown = [one for one in known.values() if isinstance(one, _Unknown)]
        if unknown and len(unknown) == len(known):
            raise ProviderUnavailable(f"the framework's look-up failed: {unknown[0].reason}")
        return {name: Located({} if isinstance(one, _Unknown) else one, ANY) for name, one in known.items()}

    async def list_workers(self) -> list[ProviderWorker]:
        """Every worker that it knows; alive are those with an address. Raises `ProviderUnavailable`."""
        known = await self._ask(None)
        return [
            ProviderWorker(name, ANY, alive=None, serving=False)
            if isinstance(one, _Unknown)
            else ProviderWorker(name, ANY, alive=bool(one))
            for name, one in known.items()
        ]

    async def _ask(self, wanted: Sequence[str] | None) -> dict[str, dict[str, HostAndPort] | _Unknown]:
        """Look on the thread, after the look-ups before; while one hangs, there is no answer."""

        def work() -> dict[str, dict[str, HostAndPort] | _Unknown]:
            return {name: _read(name, answer) for name, answer in self._look(wanted).items()}

        try:
            async with asyncio.timeout(self._deadline):
                return await asyncio.wrap_future(self._thread.submit(work))
        except TimeoutError as exc:
            raise ProviderUnavailable(f"no answer from the framework within {self._deadline:g} s") from exc
        except Exception as exc:
            raise ProviderUnavailable(f"the framework's look-up failed: {exc!r}") from exc


def _read(name: str, answer: Any) -> dict[str, HostAndPort] | _Unknown:
    """What the framework answered for one worker."""
    if isinstance(answer, _Unknown):
        return answer
    try:
        return named_addresses(answer)
    except Exception as exc:  # noqa: BLE001 - it may be any object
        return _Unknown(f"what it tells of {name!r} is no address: {exc!r}")
