"""Listed workers that are somewhere else now, in the same life: found by asking the provider about all of them at once.

Beside the lane's loop, so that a provider that is slow holds up no step; and cheap where nobody has moved, because the
answer is compared with the one that last meant just that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from rollbook.projections.ending import end
from rollbook.projections.lanes.admission import Site
from rollbook.projections.lanes.desk import Desk
from rollbook.projections.ports import Located


class Moves:
    """Of one proxy. `found` is called with every worker that has moved, `failed` with what a search failed with."""

    def __init__(self, desk: Desk, found: Callable[[str], None], failed: Callable[[BaseException], None]) -> None:
        self.to: dict[str, str] = {}
        """Where they are now; forgotten after the next step of their key."""
        self._desk = desk
        self._found = found
        self._failed = failed
        self._looking: asyncio.Task[None] | None = None
        self._at_home: dict[str, tuple[Located, str]] = {}
        """The provider's answer and the listed URL by which a worker had not moved."""

    def look(self, places: Mapping[str, str]) -> None:
        """Begin to look for those who are listed at `places`, unless that is going on."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(dict(places)))
            self._looking.add_done_callback(self._looked)

    def _looked(self, looking: asyncio.Task[None]) -> None:
        if not looking.cancelled() and (exc := looking.exception()) is not None:
            self._failed(exc)

    async def _look(self, places: dict[str, str]) -> None:
        admission, canonical = self._desk.admission, self._desk.proxy.canonical_url
        located = await admission.where(places)
        self._at_home = {name: known for name, known in self._at_home.items() if name in places}
        for name, where in located.items():
            if self._at_home.get(name) == (where, places[name]):
                continue
            site = admission.site(name, where, canonical)
            if not isinstance(site, Site):
                continue
            if site.url == places[name]:
                self._at_home[name] = (where, site.url)
            elif admission.may_be_added(name, self._desk.served) and await admission.ready(name, site) is None:
                self.to[name] = site.url
                self._found(name)

    def forget(self, name: str) -> None:
        """A step of its key has ended: where it is now is asked anew."""
        self.to.pop(name, None)

    async def close(self) -> None:
        """Stop what is under way."""
        if self._looking is not None:
            await end(self._looking)
