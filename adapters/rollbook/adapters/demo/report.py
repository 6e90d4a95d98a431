"""The report of a demo run: how fast each kill was followed, what became of the requests, which promises held.

Pure: the same `Run` gives the same `Report`. Whatever broke stands in `checks`; nothing is explained away here.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from rollbook.adapters.demo.checks import all_checks
from rollbook.adapters.demo.history import History
from rollbook.adapters.demo.promise import Check
from rollbook.adapters.demo.records import Disturbance, How, Kill, RouterRestart, Run
from rollbook.adapters.demo.served import early, late, unregistered, wrong


class KillReport(msgspec.Struct, frozen=True, kw_only=True):
    """One kill, and how long after the death each thing followed, in seconds. None: it did not."""

    worker: str
    incarnation: int
    how: How
    at: float
    """Seconds after the traffic began."""
    same_url: bool | None
    """Whether the next registered life had the same URL; None if one of the two was never registered."""
    was_registered: bool
    """Whether the router might have listed it when it died."""
    down: float | None
    """The log knew that this life was over."""
    deregistered: float | None
    """The router was seen not to list it any more."""
    registered: float | None
    """The router was seen to list a later life of this worker."""
    served: float | None
    """A later life had answered its first request."""


class RestartReport(msgspec.Struct, frozen=True, kw_only=True):
    """The router's restart. It comes back with an empty list."""

    at: float
    """Seconds after the traffic began."""
    answered: float
    """Seconds after its death until it answered again."""
    served: float | None
    """Seconds after its death until a request was served again. None: none was."""


class DisturbanceReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was done to a part that is no worker, or to a worker without ending its life; and what it cost."""

    what: str
    whom: str
    at: float
    """Seconds after the traffic began."""
    back: float | None
    """Seconds until it did its work again; of a leader: until another one had taken over. None: it did not."""
    served: float | None
    """Seconds until the first request that was sent after it had been served. None: none was."""
    failed: int
    """Requests that were sent while it was not back, and failed; for whatever reason."""
    fact: float | None
    """Seconds until the next fact was stored in the log. None: none was."""


class FallReport(msgspec.Struct, frozen=True, kw_only=True):
    """A program of Rollbook's ended by itself, and was started again."""

    program: str
    at: float
    """Seconds after the traffic began."""
    code: int
    said: str


class Requests(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the requests."""

    sent: int
    per_second: float
    failed: int
    failures: dict[str, int]
    """The failed ones by their reason."""
    wrong: int
    """Served by a life that the log knew for certain to be over when the request was sent, or that it never knew."""
    late: int
    """Served by a life of which it was concluded that it is over, and which was still listed. Breaks nothing."""
    unregistered: int
    """Served by a life that was deregistered before the request was sent."""
    early: int
    """Served by a new life before it was registered: it came back on a URL that was still listed. Breaks nothing."""
    foreign: int
    """Served by the stranger that the demo put into the router."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a run showed."""

    seed: int
    seconds: float
    """From the beginning of the traffic to the end of the run."""
    workers: tuple[str, ...]
    passed: bool
    """Whether every check held."""
    kills: tuple[KillReport, ...]
    restarts: tuple[RestartReport, ...]
    disturbances: tuple[DisturbanceReport, ...]
    falls: tuple[FallReport, ...]
    requests: Requests
    registered: dict[str, int]
    """Worker → incarnation, by the router's list at the end."""
    facts: int
    """Messages in the log."""
    sequence: int
    """Up to where the controller's state was compared with the replay's."""
    checks: tuple[Check, ...]


def judge(run: Run) -> Report:
    """Fold the run's log anew, and hold everything that was recorded against it."""
    history = History(run.policy, run.proxy, run.log, digest_at=run.live_sequence)
    checks = all_checks(run, history)
    return Report(
        seed=run.seed,
        seconds=run.ended - run.began,
        workers=run.workers,
        passed=all(check.held for check in checks),
        kills=tuple(_kill(kill, run, history) for kill in run.kills),
        restarts=tuple(_restart(restart, run) for restart in run.restarts),
        disturbances=tuple(_disturbance(one, run, history) for one in run.disturbances),
        falls=tuple(
            FallReport(program=fall.program, at=fall.at - run.began, code=fall.code, said=fall.said)
            for fall in run.falls
        ),
        requests=_requests(run, history),
        registered={entry.worker: entry.incarnation for entry in run.listed if entry.worker and entry.incarnation},
        facts=len(run.log),
        sequence=run.live_sequence,
        checks=checks,
    )


def _kill(kill: Kill, run: Run, history: History) -> KillReport:
    life = (kill.worker, kill.incarnation)
    again = history.registered_after(life)
    urls = {word.fact.url for word in history.words_about(life)}
    served = [
        request.done
        for request in run.requests
        if request.worker == kill.worker and (request.incarnation or 0) > kill.incarnation
    ]

    def after(moment: float | None) -> float | None:
        return None if moment is None else moment - kill.at

    return KillReport(
        worker=kill.worker,
        incarnation=kill.incarnation,
        how=kill.how,
        at=kill.at - run.began,
        same_url=again.fact.url in urls if urls and again is not None else None,
        was_registered=history.registered(life, kill.at),
        down=after(history.over(life)),
        deregistered=after(history.deregistered(life, kill.at)),
        registered=after(None if again is None else again.at),
        served=after(min(served, default=None)),
    )


def _disturbance(one: Disturbance, run: Run, history: History) -> DisturbanceReport:
    served = [request.done for request in run.requests if request.failure is None and request.sent >= one.at]
    until = run.ended if one.until is None else one.until
    failed = [request for request in run.requests if request.failure is not None and one.at <= request.sent <= until]
    stored = history.next_message(one.at)
    return DisturbanceReport(
        what=one.what,
        whom=one.whom,
        at=one.at - run.began,
        back=None if one.until is None else one.until - one.at,
        served=min(served) - one.at if served else None,
        failed=len(failed),
        fact=None if stored is None else stored - one.at,
    )


def _restart(restart: RouterRestart, run: Run) -> RestartReport:
    served = [request.done for request in run.requests if request.failure is None and request.sent >= restart.at]
    return RestartReport(
        at=restart.at - run.began,
        answered=restart.answered - restart.at,
        served=min(served) - restart.at if served else None,
    )


def _requests(run: Run, history: History) -> Requests:
    failures = Counter(request.failure for request in run.requests if request.failure is not None)
    served = [request for request in run.requests if request.failure is None]
    seconds = max((request.sent for request in run.requests), default=run.began) - run.began
    foreign = 0 if run.foreign is None else run.foreign.served
    sent = len(run.requests) + foreign
    return Requests(
        sent=sent,
        per_second=sent / seconds if seconds > 0 else 0.0,
        failed=failures.total(),
        failures=dict(failures.most_common()),
        wrong=sum(wrong(request, history) is not None for request in served),
        late=sum(late(request, history) for request in served),
        unregistered=sum(unregistered(request, history) for request in served),
        early=sum(early(request, history) for request in served),
        foreign=foreign,
    )
