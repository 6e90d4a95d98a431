"""What the log alone can say where nobody can be asked: which pools a proxy serves, and what it lists.

Both are second best. The log holds no configuration, so a proxy serves the pools of the workers that were ever
registered there; and it lists what the log last says of it.
"""

from __future__ import annotations

from rollbook.projections.fold import State
from rollbook.projections.ledger import ProxyRecord, Told
from rollbook.projections.policy import Policy, ProxyPolicy
from rollbook.projections.ports import Entry, Listing
from rollbook.projections.preview import Answers, Line, Preview, lines_at

_LISTED = frozenset({Told.REGISTERED, Told.DEREGISTERING, Told.REMOVE_UNSUPPORTED})

NOTE = "nobody was asked: this is what the log says, also of which pools a proxy serves"


def policy_of(fleet: str, state: State) -> Policy:
    """The policy as far as the log shows it."""
    proxies: dict[str, ProxyPolicy] = {}
    for name, record in state.ledger.proxies.items():
        workers = (state.roster.workers.get(worker) for worker in record.registrations)
        pools = dict.fromkeys(worker.pool for worker in workers if worker is not None and worker.pool is not None)
        proxies[name] = ProxyPolicy(name=name, pools=tuple(pools))
    return Policy(fleet=fleet, pools={}, proxies=proxies)


def listing_of(fleet: str, record: ProxyRecord) -> Listing:
    """What a proxy lists by the log's last word."""
    return Listing(
        tuple(
            Entry(url=life.url, handle=life.url, fleet=fleet, worker=worker, incarnation=incarnation)
            for worker, lives in record.registrations.items()
            for incarnation, life in lives.items()
            if life.told in _LISTED
        ),
        record.version,
    )


def preview_of(state: State, policy: Policy, time: str, only: str | None = None) -> Preview:
    """The plan by the log's word alone; `only` names one proxy."""
    lines: list[Line] = []
    unrecorded = 0
    for name, served in policy.proxies.items():
        if only in {None, name}:
            listing = listing_of(policy.fleet, state.ledger.look(name))
            found, count = lines_at(state, policy, served, Answers(listing=listing))
            lines += found
            unrecorded += count
    return Preview(
        fleet=policy.fleet,
        sequence=state.sequence,
        time=time,
        lines=tuple(lines),
        unrecorded=unrecorded,
        notes=(NOTE,),
    )
