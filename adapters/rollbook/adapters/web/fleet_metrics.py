"""What is read at the moment of a scrape: the fold, the lanes, the lease. No worker is a label: fleets are large."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from rollbook.adapters.web.metrics import Metrics
from rollbook.events import DriftFound
from rollbook.projections.deciding import gates
from rollbook.projections.leading.controller import Controller
from rollbook.projections.looking.preview import withheld_at
from rollbook.projections.ports import LogState
from rollbook.projections.resources import Resources
from rollbook.projections.state.fold import State
from rollbook.projections.state.ledger import Told
from rollbook.projections.state.worker import Phase

Sample = tuple[tuple[str, ...], float]
"""Values of the labels, and the number."""


class AtProxy(msgspec.Struct, frozen=True):
    """Workers at one proxy, by the log."""

    wanted: int
    """They pass the standing gates."""
    registered: int
    """Of them: the log says that their present life is registered."""


class FleetCollector(Collector):
    """Registered with the registry of `metrics`. `ends` is where the log ends, as the server last learned."""

    def __init__(self, controller: Controller, resources: Resources, metrics: Metrics) -> None:
        self.ends: LogState | None = None
        """None while the log does not answer."""
        self.monotonic = 0.0
        """When the scrape is."""
        self._controller = controller
        self._resources = resources
        self._metrics = metrics
        self._counted: tuple[int, dict[str, AtProxy], Counter[Phase]] | None = None

    def collect(self) -> Iterator[Metric]:
        """Every family, also those without a sample now."""
        projector = self._controller.projector
        state = State() if projector is None else projector.state
        yield from self._log(state)
        yield from self._leading()
        yield from self._fleet(state)
        yield from self._proxies(state)
        yield from self._lanes()

    # -------------------------------------------------------------- the parts

    def _log(self, state: State) -> Iterator[Metric]:
        last, behind, seconds = self._metrics.last, 0, 0.0
        if self.ends is not None and self.ends.last_sequence > state.sequence:
            behind = self.ends.last_sequence - state.sequence
            seconds = 0.0 if last is None else max(self.ends.at - last.stored_at, 0.0)
        yield _one("rollbook_log_reachable", "Whether the log answered this scrape.", float(self.ends is not None))
        yield _one("rollbook_fold_sequence", "The last sequence folded.", state.sequence)
        yield _one("rollbook_fold_lag", "Messages in the log that are not folded yet.", behind)
        yield _one("rollbook_fold_lag_seconds", "Age of the last one folded, while there are others; else 0.", seconds)
        yield _one("rollbook_quarantined", "Messages quarantined in the log so far.", state.quarantined)
        yield _one("rollbook_unreadable", "Messages that are to be quarantined yet.", len(state.unreadable))
        unknown = sum(state.unknown.values())
        yield _one("rollbook_facts_of_later_versions", "Facts of types that this version does not know.", unknown)

    def _leading(self) -> Iterator[Metric]:
        leading = self._controller.leading
        yield _one("rollbook_leader", "1 while this process leads, 0 while it stands by.", float(leading is not None))
        epoch = 0 if leading is None else leading.epoch
        yield _one("rollbook_leader_epoch", "The epoch under which it leads; 0 while it does not.", epoch)
        left = max(self._resources.leadership.left(), 0.0) if leading is not None else 0.0
        yield _one("rollbook_lease_seconds_left", "For how long leadership is certainly held without a renewal.", left)

    def _fleet(self, state: State) -> Iterator[Metric]:
        phases = self._count(state)[1]
        yield _many(
            "rollbook_workers",
            "Workers by phase.",
            ["phase"],
            [((str(phase),), phases[phase]) for phase in Phase],
        )
        yield _one("rollbook_cordoned", "Workers that an operator keeps out.", len(state.roster.cordons))
        observers = self._resources.observers
        silent = observers.silent(self.monotonic)
        yield _many(
            "rollbook_observer_silent_seconds",
            "For how long nothing was heard of a monitor that should be; 0 while it is heard.",
            ["observer"],
            [((name,), silent.get(name, 0.0)) for name in observers.names()],
        )

    def _proxies(self, state: State) -> Iterator[Metric]:
        names = list(self._controller.policy.proxies)
        at = self._count(state)[0]
        records = {name: state.ledger.look(name) for name in names}
        none = DriftFound(proxy="none")
        drift = {name: self._metrics.drift.get(name, none) for name in names}
        leading = self._controller.leading
        lanes = None if leading is None else leading.withheld
        yield _many(
            "rollbook_proxy_reachable",
            "Whether its admin API answers, by the log's last word.",
            ["proxy"],
            [((name,), float(record.reachable)) for name, record in records.items() if record.reachable is not None],
        )
        yield _many(
            "rollbook_proxy_wanted",
            "Workers that belong there: they pass the standing gates.",
            ["proxy"],
            [((name,), at[name].wanted) for name in names],
        )
        yield _many(
            "rollbook_proxy_registered",
            "Of them, those whose present life is registered, by the log's last word.",
            ["proxy"],
            [((name,), at[name].registered) for name in names],
        )
        yield _many(
            "rollbook_proxy_drift",
            "Entries that it lost (missing), that the log does not know (unexpected), or of others (foreign).",
            ["proxy", "kind"],
            [
                sample
                for name in names
                for sample in (
                    ((name, "missing"), float(len(drift[name].missing))),
                    ((name, "unexpected"), float(len(drift[name].unexpected))),
                    ((name, "foreign"), float(len(records[name].foreign))),
                )
            ],
        )
        yield _many(
            "rollbook_proxy_withheld",
            "Entries that do not belong there and stay for now; on a standby, as far as the log names them.",
            ["proxy"],
            [((name,), len(withheld_at(name, records[name], lanes))) for name in names],
        )
        yield _many(
            "rollbook_proxy_held",
            "1 while an operator holds its reconciliation.",
            ["proxy"],
            [((name,), float(state.roster.holding(name) is not None)) for name in names],
        )

    def _lanes(self) -> Iterator[Metric]:
        lanes = self._controller.lanes
        yield _many(
            "rollbook_lane_keys",
            "Workers that a lane has yet to look at (dirty), is working on (in flight), or tries again (retrying).",
            ["proxy", "state"],
            [
                ((name, what), float(count))
                for name, lane in lanes.items()
                for what, count in zip(("dirty", "in flight", "retrying"), lane.queue, strict=True)
            ],
        )
        kept_out = {name: Counter(str(held.gate) for held in lane.held.values()) for name, lane in lanes.items()}
        yield _many(
            "rollbook_lane_kept_out",
            "Newcomers that an admission gate keeps out, as last asked.",
            ["proxy", "gate"],
            [((name, gate), count) for name, counted in kept_out.items() for gate, count in counted.items()],
        )

    def _count(self, state: State) -> tuple[dict[str, AtProxy], Counter[Phase]]:
        """Looked at anew only when the fold has moved: a walk over all workers takes milliseconds per thousand."""
        if self._counted is None or self._counted[0] != state.sequence:
            at = {name: self._at(state, name) for name in self._controller.policy.proxies}
            phases = Counter(worker.phase for worker in state.roster.workers.values())
            self._counted = (state.sequence, at, phases)
        return self._counted[1], self._counted[2]

    def _at(self, state: State, proxy: str) -> AtProxy:
        policy = self._controller.policy
        registrations = state.ledger.look(proxy).registrations
        wanted = registered = 0
        for name, worker in state.roster.workers.items():
            if gates.standing(state.roster, policy, policy.proxies[proxy], name) is not None:
                continue
            wanted += 1
            life = registrations.get(name, {}).get(worker.incarnation)
            registered += life is not None and life.told is Told.REGISTERED
        return AtProxy(wanted, registered)


def _one(name: str, told: str, value: float) -> Metric:
    return GaugeMetricFamily(name, told, value)


def _many(name: str, told: str, labels: Sequence[str], samples: Sequence[Sample]) -> Metric:
    family = GaugeMetricFamily(name, told, labels=labels)
    for values, number in samples:
        family.add_metric(values, number)
    return family
