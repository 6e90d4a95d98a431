"""What all steps at one proxy share: what each asks before a call, and the one way in which calls begin."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rollbook.projections.deciding import gates
from rollbook.projections.deciding.gates import Held
from rollbook.projections.deciding.observed import Life
from rollbook.projections.deciding.outdated import outdated
from rollbook.projections.lanes.admission import Admission, Site
from rollbook.projections.lanes.listing import Reader, bounded
from rollbook.projections.lanes.notes import Notes
from rollbook.projections.lanes.outcomes import NoAnswer, NotCalled, Recorder
from rollbook.projections.lanes.urls import Urls
from rollbook.projections.log.authority import Authority
from rollbook.projections.log.projector import Projector
from rollbook.projections.policy import Policy
from rollbook.projections.ports import Answer, Done, Failed, Pending, Proxy, ProxyUnavailable, Unsupported
from rollbook.projections.state.fold import State
from rollbook.projections.state.ledger import ProxyRecord

ASKING_PAUSE = 0.25
"""Seconds between two questions after the outcome of a promise, where no listing shows it."""


class Desk:
    """One proxy, as its steps see it."""

    def __init__(
        self,
        proxy: Proxy,
        policy: Policy,
        *,
        projector: Projector,
        reader: Reader,
        recorder: Recorder,
        notes: Notes,
        admission: Admission,
        authority: Authority,
    ) -> None:
        self.proxy = proxy
        self.served = policy.proxies[proxy.name]
        self.policy = policy
        self.reader = reader
        self.recorder = recorder
        self.admission = admission
        self.urls = Urls(projector, policy, self.served, proxy.capabilities, tick=reader.tick)
        self.blind = not proxy.capabilities.list
        self.seconds = policy.call_seconds(self.served)
        """For one admin call."""
        self._projector = projector
        self._notes = notes
        self._authority = authority
        self._leaving: tuple[State, int, dict[str, str]] | None = None

    @property
    def state(self) -> State:
        """The fold as it is now."""
        return self._projector.state

    @property
    def record(self) -> ProxyRecord:
        """What the log says of this proxy now."""
        return self.state.ledger.look(self.served.name)

    def unwanted(self, name: str, incarnation: int) -> str | None:
        """Why this life does not belong here, by the roster as it is now."""
        return gates.unwanted(self.state.roster, self.policy, self.served, name, incarnation)

    def outdated(self) -> dict[str, str]:
        """Who leaves for its weights, and why, by the fold as it is now.

        Looked up once for each state of the fold: everybody counts, and all who leave at once ask again and again.
        """
        state = self.state
        if self._leaving is None or self._leaving[0] is not state or self._leaving[1] != state.sequence:
            self._leaving = (state, state.sequence, outdated(state, self.policy, self.served))
        return self._leaving[2]

    def on_hold(self) -> str | None:
        """Why no admin call may be made now, by an operator's word."""
        decision = self.state.roster.holding(self.served.name)
        return None if decision is None else f"held by {decision.by}: {decision.why}"

    async def locate(self, life: Life) -> Site | Held:
        """Where this life is now."""
        return await self.admission.locate(*life, self.served, self.proxy.canonical_url)

    async def call(self, call: Callable[[], Awaitable[Answer]], verb: str) -> Answer:
        """An admin call with its deadline; no usable answer is a failure whose effect is unknown and read back.

        The one place where calls begin that change a proxy: none does with less than its deadline left of the lease
        [I7].
        """
        if (missing := self._authority.missing(self.seconds)) is not None:
            return NotCalled(f"not called: {missing}")
        try:
            answer = await bounded(call(), self.seconds, verb)
        except ProxyUnavailable as exc:
            if self.blind:
                await self._notes.unreachable(str(exc))
            return NoAnswer(f"no answer, effect unknown: {exc}")
        if self.blind:
            await self._notes.reachable(None)
        return answer

    async def kept(self, pending: Pending, give_up: Callable[[], str | None]) -> str | None:
        """None once a blind proxy says that it has kept a promise; otherwise why it is not waited for any longer."""
        clock = self.reader.clock
        deadline = clock.monotonic() + self.policy.reconcile.confirm_deadline
        while True:
            now = await self.outcome(pending)
            if not isinstance(now, Pending):
                return now.reason if isinstance(now, Failed) else None
            if (reason := give_up()) is not None:
                return reason
            if clock.monotonic() >= deadline:
                return f"not done within {self.policy.reconcile.confirm_deadline:g} s"
            await clock.sleep(ASKING_PAUSE)

    async def outcome(self, pending: Pending) -> Pending | Failed | None:
        """What became of a promise: still one (also if the proxy cannot be asked), broken, or kept."""
        try:
            now = await bounded(self.proxy.outcome(pending), self.seconds, "outcome")
        except ProxyUnavailable:
            return pending
        if isinstance(now, Unsupported):
            return Failed(now.reason)
        return None if isinstance(now, Done) else now
