"""What would have been wanted under another policy: other gates, pools or proxies, against what was."""

from __future__ import annotations

import msgspec

from rollbook.projections.history.judged import verdict
from rollbook.projections.policy import Policy
from rollbook.projections.state.fold import State
from rollbook.projections.state.ledger import Told


class Otherwise(msgspec.Struct, frozen=True):
    """One worker at one proxy that would be another case."""

    proxy: str
    worker: str
    incarnation: int
    registered: bool
    """Whether it was, by the log's word."""
    was: str | None
    """The gate that kept it out under the policy in force, with the reason; None if it was wanted."""
    would: str | None
    """The same under the other policy."""

    @property
    def gains(self) -> bool:
        """Whether it would be wanted and was not registered."""
        return self.would is None and not self.registered

    @property
    def loses(self) -> bool:
        """Whether it was registered and would not be wanted."""
        return self.would is not None and self.registered


def otherwise(state: State, policy: Policy, other: Policy) -> list[Otherwise]:
    """Every worker and proxy where the other policy would want another thing than was, or for another reason.

    Only gates that the log answers are asked: address and readiness are known at the moment only.
    """
    found: list[Otherwise] = []
    for proxy in dict.fromkeys([*policy.proxies, *other.proxies]):
        lives = state.ledger.look(proxy).registrations
        for name, worker in state.roster.workers.items():
            told = lives.get(name, {}).get(worker.incarnation)
            registered = told is not None and told.told is Told.REGISTERED
            was, would = _out(state, policy, proxy, name), _out(state, other, proxy, name)
            if was != would or registered != (would is None):
                found.append(Otherwise(proxy, name, worker.incarnation, registered, was, would))
    return [one for one in found if one.registered or one.was is None or one.would is None]


def _out(state: State, policy: Policy, proxy: str, worker: str) -> str | None:
    served = policy.proxies.get(proxy)
    if served is None:
        return "selected: there is no such proxy"
    failed = verdict(state.roster, policy, served, worker).failed
    return None if failed is None else f"{failed.gate}: {failed.reason}"
