"""The kinds of routers that stand in one fleet: every set of capabilities that a real one has."""

from typing import Final

import msgspec

from rollbook.adapters.memory.faults import ProxyFaults
from rollbook.adapters.memory.proxy import AS_SGLANG
from rollbook.projections.ports import Capabilities


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """What a router can do, and how patiently it waits for a worker that it is to add."""

    capabilities: Capabilities
    patience: float = 0.0
    """Seconds; see `MemoryProxy`."""
    weight: int = 1
    """How often it is drawn, against the others."""

    @property
    def ghosts(self) -> bool:
        """Whether what was asked for may still happen after the caller has given up.

        Only where entries are tagged: elsewhere nobody could tell whose the ghost is, and real routers of that kind add
        while the caller waits.
        """
        return self.capabilities.tag and self.capabilities.async_add


KINDS: Final = {
    "sglang": Kind(capabilities=AS_SGLANG, patience=6.0, weight=5),
    "haproxy": Kind(capabilities=Capabilities(drain=True), weight=3),
    "vllm": Kind(capabilities=Capabilities(tag=False, probes_on_add=True), weight=2),
    "lmdeploy": Kind(capabilities=Capabilities(tag=False), weight=1),
    "miles": Kind(capabilities=Capabilities(tag=False, remove=False), weight=1),
    "routed-api": Kind(capabilities=Capabilities(tag=False, list=False), weight=1),
    "routed-api without removal": Kind(capabilities=Capabilities(tag=False, list=False, remove=False), weight=1),
    "promises and drains": Kind(
        capabilities=Capabilities(async_add=True, probes_on_add=True, drain=True), patience=3.0, weight=1
    ),
}
"""By name. Sglang and HAProxy stand for the two ways of telling whose an entry is; the others for what is missing."""


def temper(kind: str, faults: ProxyFaults) -> ProxyFaults:
    """The faults that a router of this kind can have without doing what nobody could notice.

    A router that lists nothing cannot lose, lie or restart unnoticed: what then becomes of it is not a property of
    Rollbook, and `docs/weaknesses.md` says so.
    """
    found = KINDS[kind]
    if found.ghosts:
        return faults
    calm = msgspec.structs.replace(faults, act_late=0.0, slowest_call=min(faults.slowest_call, 0.01), slowest_job=0.0)
    return calm if found.capabilities.list else msgspec.structs.replace(calm, lie=0.0, fail_job=0.0)
