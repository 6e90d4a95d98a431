"""The gate `address_free` by what is listed: may a newcomer have this URL? Pure; the newest life owns a URL [I3]."""

from __future__ import annotations

from rollbook.projections.deciding import gates
from rollbook.projections.deciding.gates import Gate, Held
from rollbook.projections.deciding.observed import Observed
from rollbook.projections.deciding.plan import Add, Remove, removable
from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.ports import Capabilities
from rollbook.projections.state.fold import State


def in_the_way(
    state: State,
    policy: Policy,
    served: ProxyPolicy,
    capabilities: Capabilities,
    action: Add,
    url: str,
    observed: Observed,
) -> tuple[Held, Remove | None] | None:
    """The gate `address_free` by what is listed: None if `url` may be added; else as `not_free`."""
    if url not in observed.urls:
        return None
    holder = observed.urls[url]
    if holder is None:
        return not_free(f"{url} is listed by somebody else's entry")
    whose, heir = holder.worker, (action.worker, action.incarnation)
    if (whose, holder.incarnation) == heir:
        return None
    if state.roster.began_after(whose, holder.incarnation, action.worker):
        return not_free(f"{url} belongs to {whose}, whose life {holder.incarnation} is newer")
    if not capabilities.remove and gates.unwanted(state.roster, policy, served, whose, holder.incarnation) is not None:
        return None  # the entry outlived its life, and is taken over with its URL
    if not removable(state.ledger.look(served.name).registrations.get(whose, {}), holder, capabilities):
        return not_free(f"{url} is listed for {whose}, and the proxy cannot remove it")
    reason = f"its url belongs to {action.worker} now"
    evict = Remove(whose, holder.incarnation, holder.entry, reason, unless_wanted=False, heir=heir)
    return not_free(f"{url} is still listed for {whose}", evict)


def not_free(reason: str, evict: Remove | None = None) -> tuple[Held, Remove | None]:
    """The gate that is closed, and which entry must go first, if any."""
    return Held(Gate.ADDRESS_FREE, reason), evict
