"""Who has which URL of one proxy: one change of a URL at a time, and the newest life owns it [I3]."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

from rollbook.projections.deciding import gates
from rollbook.projections.deciding.gates import Held
from rollbook.projections.deciding.observed import Observed
from rollbook.projections.deciding.occupied import in_the_way, not_free
from rollbook.projections.deciding.plan import Add, Remove
from rollbook.projections.lanes.listing import Seen
from rollbook.projections.log.projector import Projector
from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.ports import Capabilities


class Urls:
    """The URLs of one proxy, as its lane changes them. `tick` gives the present moment on the count of `Seen.began`."""

    def __init__(
        self,
        projector: Projector,
        policy: Policy,
        served: ProxyPolicy,
        capabilities: Capabilities,
        *,
        tick: Callable[[], int],
    ) -> None:
        self._projector = projector
        self._policy = policy
        self._served = served
        self._capabilities = capabilities
        self._tick = tick
        self._busy: set[str] = set()
        self._changed: dict[str, int] = {}
        self._claims: dict[str, tuple[str, int]] = {}
        """URL → the life for which another worker's entry was evicted there, until it is listed itself."""

    def usable(self, url: str, seen: Seen) -> bool:
        """Whether nothing of ours changes `url` now or has changed it since the listing began."""
        return url not in self._busy and self._changed.get(url, 0) <= seen.began

    @contextmanager
    def changing(self, url: str) -> Generator[None]:
        """Until the end of the block, `url` is usable to nobody; afterwards, on newer listings only."""
        self._busy.add(url)
        try:
            yield
        finally:
            self._busy.discard(url)
            self._changed[url] = self._tick()

    def forget_before(self, began: int) -> None:
        """Drop what only mattered to listings begun before `began`."""
        self._changed = {url: tick for url, tick in self._changed.items() if tick > began}

    def settled(self, url: str) -> None:
        """Whoever claimed `url` is listed there: from now on the listing says whose it is."""
        self._claims.pop(url, None)

    def taken(self, action: Add, url: str, observed: Observed) -> tuple[Held, Remove | None] | None:
        """The gate `address_free`: None if `url` may be added; else why not, and which entry must go first, if any."""
        life = (action.worker, action.incarnation)
        self._claims = {at: whose for at, whose in self._claims.items() if at == url or whose != life}
        claim = self._claims.get(url)
        if claim is not None and self.owns(claim, action.worker):
            return not_free(f"{url} belongs to {claim[0]}, whose life {claim[1]} is newer")
        state = self._projector.state
        found = in_the_way(state, self._policy, self._served, self._capabilities, action, url, observed)
        if found is not None and found[1] is not None:
            self._claims[url] = life
        return found

    def owns(self, life: tuple[str, int], name: str) -> bool:
        """Whether `life` belongs at this proxy and is newer than the current one of `name`."""
        unwanted = gates.unwanted(self._projector.state.roster, self._policy, self._served, *life)
        return unwanted is None and self._projector.state.roster.began_after(*life, name)
