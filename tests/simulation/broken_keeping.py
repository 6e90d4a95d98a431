"""Broken builds that watch and restart wrongly: verdicts, claims, budget, sleep, leases."""

import msgspec

from rollbook.events import RecoveryStarted, WorkerDown, WorkerSuspected, WorkerUp
from rollbook.events.times import rfc3339
from rollbook.projections.deciding import gates
from rollbook.projections.health import monitor
from rollbook.projections.health.monitor import Monitor
from rollbook.projections.health.verdict import Outcome
from rollbook.projections.health.verdicts import Verdicts
from rollbook.projections.leading import claims
from rollbook.projections.leading.leases import Examiner
from rollbook.projections.recovery import due
from rollbook.projections.recovery.recoverer import Recoverer

# ---------------------------------------------------------------- verdicts


def _unfenced(patch, *kinds):
    write = Verdicts.write

    async def whatever(self, fact, *, as_of):
        if not isinstance(fact, kinds):
            return await write(self, fact, as_of=as_of)
        about = {"id": self._ids.new(), "time": rfc3339(self._clock.now()), "publisher": self._observer}
        self._may()
        return (await self._log.append([self._codec.draft(fact, **about)]))[0]

    patch.setattr(Verdicts, "write", whatever)


def verdicts_are_not_fenced(patch):
    """[I3] a verdict is written whatever was said since its probe began"""
    _unfenced(patch, WorkerDown, WorkerSuspected, WorkerUp)


def verdicts_are_fenced_too_late(patch):
    """[I3] a verdict knows what was said until it is written, and not only until its probe began"""
    write = Verdicts.write

    async def late(self, fact, *, as_of):
        return await write(self, fact, as_of=(await self._log.state()).last_sequence)

    patch.setattr(Verdicts, "write", late)


def unknown_is_dead(patch):
    """[I3] a worker that could not be asked counts as one that refused"""
    judge = monitor.judge

    def sure(tally, policy, worker, finding, **about):
        if finding.outcome is Outcome.UNKNOWN:
            finding = msgspec.structs.replace(finding, outcome=Outcome.REFUSED)
        return judge(tally, policy, worker, finding, **about)

    patch.setattr(monitor, "judge", sure)


def who_sleeps_is_asked(patch):
    """[I3] suspended workers are watched as all others"""
    mark = Monitor._mark

    def wide_awake(self, marks):
        workers = self._projector.state.roster.workers.values()
        asleep = {worker.name: worker.suspension for worker in workers}
        for worker in workers:
            worker.suspension = None
        try:
            mark(self, marks)
        finally:
            for worker in workers:
                worker.suspension = asleep[worker.name]

    patch.setattr(Monitor, "_mark", wide_awake)


def who_sleeps_is_routed(patch):
    """[I2] a suspended worker stays, and is let in, where it is to leave"""
    standing = gates.standing

    def awake(book, policy, proxy, name):
        held = standing(book, policy, proxy, name)
        return None if held is not None and held.gate is gates.Gate.NOT_SUSPENDED else held

    patch.setattr(gates, "standing", awake)


def leases_are_not_asked_about(patch):
    """[I3] a lease that is over is a verdict without a question"""

    async def silent(self, name):
        return "it was not asked"

    patch.setattr(Examiner, "_ask", silent)


# ---------------------------------------------------------------- claims and budget


def claims_are_not_fenced(patch):
    """a claim is written whatever stands on the subject"""
    _unfenced(patch, RecoveryStarted)


def claims_never_end(patch):
    """the leader ends no claim of a recoverer that was killed"""
    patch.setattr(claims, "claimed", lambda *about: {})


def lost_claims_are_kept(patch):
    """[I3] a recoverer does not notice that its claim is over"""
    patch.setattr(Recoverer, "_mine", lambda self, *about: True)


def attempts_are_not_counted(patch):
    """every attempt is the first one"""
    patch.setattr(due, "recent", lambda *about: [])


def the_window_is_ignored(patch):
    """attempts count for ever"""
    recent = due.recent

    def ever(cell, policy, now):
        return recent(cell, msgspec.structs.replace(policy, window=1e9), now)

    patch.setattr(due, "recent", ever)


def attempts_follow_at_once(patch):
    """nobody waits between two attempts"""
    patch.setattr(due, "backoff", lambda *about: 0.0)


MUTATIONS = (
    verdicts_are_not_fenced,
    verdicts_are_fenced_too_late,
    unknown_is_dead,
    who_sleeps_is_asked,
    who_sleeps_is_routed,
    leases_are_not_asked_about,
    claims_are_not_fenced,
    claims_never_end,
    lost_claims_are_kept,
    attempts_are_not_counted,
    the_window_is_ignored,
    attempts_follow_at_once,
)
