"""The promises that a demo run is held to, each with what broke it."""

from __future__ import annotations

from collections.abc import Sequence

from rollbook.adapters.demo.history import History, Life, Word
from rollbook.adapters.demo.promise import Check, checked
from rollbook.adapters.demo.records import Listed, Run
from rollbook.adapters.demo.served import life_of, unregistered, wrong
from rollbook.adapters.demo.storm_checks import all_back, left_alone, one_writer
from rollbook.events import Deregistered, Deregistering, Registered, Registering, RegistrationFact, RegistrationFailed

Outcomes = dict[int, list[RegistrationFact]]
"""Outcome facts by the sequence that they name as their cause."""


def all_checks(run: Run, history: History) -> tuple[Check, ...]:
    """Hold the run to every promise."""
    outcomes = _outcomes(history)
    checks = (
        _registrations(run, history),
        _resurrections(history, outcomes),
        _friendly_fire(history, outcomes),
        _intents(history, outcomes),
        _wrong(run, history),
        _unregistered(run, history),
        _followed(run, history),
        _met(run, history),
        _readable(run, history),
        _replay(run, history),
        one_writer(history),
    )
    return checks if run.foreign is None else (*checks, left_alone(run.foreign, history), all_back(run))


def _outcomes(history: History) -> Outcomes:
    outcomes: Outcomes = {}
    for word in history.words:
        if isinstance(word.fact, Registered | Deregistered | RegistrationFailed):
            outcomes.setdefault(word.fact.cause, []).append(word.fact)
    return outcomes


def _registrations(run: Run, history: History) -> Check:
    """The router lists exactly the lives that the roster wants, each answers at its URL, and no worker is missing."""
    wanted = history.wanted()
    roster = history.state.roster.workers
    problems: list[str] = []
    for name in run.workers:
        if name not in wanted:
            incarnation = roster[name].incarnation if name in roster else 0
            problems.append(f"{name} does not belong in the router: {history.unwanted(name, incarnation)}")
    listed: dict[str, Listed] = {}
    for entry in run.listed:
        if entry.worker is None or entry.incarnation is None:
            problems.append(f"{entry.url} is listed, and is nobody's in the roster")
            continue
        who = f"{entry.url} is listed for {entry.worker} {entry.incarnation}"
        if wanted.get(entry.worker) != entry.incarnation:
            problems.append(f"{who}, and the roster wants {wanted.get(entry.worker, 'none of it')}")
        elif entry.worker in listed:
            problems.append(f"{who}, and so is {listed[entry.worker].url}")
        elif entry.answers != (entry.worker, entry.incarnation):
            answers = "nobody" if entry.answers is None else " ".join(map(str, entry.answers))
            problems.append(f"{who}, and {answers} answers there")
        listed[entry.worker] = entry
    problems += [f"{name} {wanted[name]} is wanted, and is not listed" for name in wanted if name not in listed]
    return checked("registrations match the roster at the end", "I1", len(wanted), problems)


def _resurrections(history: History, outcomes: Outcomes) -> Check:
    """An intent against the roster may be written (what made it wrong was on its way), but is then not carried out."""
    intents = [word for word in history.words if isinstance(word.fact, Registering)]
    problems = [
        f"sequence {word.sequence}: {word.fact.worker} {word.fact.incarnation} was registered, although "
        f"{history.against[word.sequence]}"
        for word in intents
        if word.sequence in history.against
        and any(isinstance(outcome, Registered) for outcome in outcomes.get(word.sequence, []))
    ]
    return checked("no dead or superseded life was registered", "I2", len(intents), problems)


def _friendly_fire(history: History, outcomes: Outcomes) -> Check:
    """A life that belongs in the router is removed only when its URL has become another worker's."""
    intents = [word for word in history.words if isinstance(word.fact, Deregistering)]
    problems: list[str] = []
    for word in intents:
        fact = word.fact
        carried_out = any(isinstance(outcome, Deregistered) for outcome in outcomes.get(word.sequence, []))
        heirs = (
            later.fact.worker
            for later in history.words
            if later.sequence > word.sequence and isinstance(later.fact, Registering) and later.fact.url == fact.url
        )
        evicted = next(heirs, fact.worker) != fact.worker
        if word.sequence in history.against and carried_out and not evicted:
            told = f"{fact.worker} {fact.incarnation} was deregistered, although {history.against[word.sequence]}"
            problems.append(f"sequence {word.sequence}: {told}")
    return checked("no serving life was deregistered", "I3", len(intents), problems)


def _intents(history: History, outcomes: Outcomes) -> Check:
    """Every outcome names an earlier word on the same life, and every intent has its outcome.

    Of a leader that died between the two there is none; then its successor has said how that life stands.
    """
    takeovers = [one.sequence for one in history.takeovers()]
    known: dict[int, Life] = {}
    problems: list[str] = []
    for word in history.words:
        fact, life = word.fact, (word.fact.worker, word.fact.incarnation)
        what = f"sequence {word.sequence}: {type(fact).__name__} of {life[0]} {life[1]}"
        if isinstance(fact, Registering | Deregistering):
            if word.sequence not in outcomes and not _settled_later(word, takeovers, history):
                problems.append(f"{what} has no outcome")
        elif known.get(fact.cause) != life:
            problems.append(f"{what} has no intent before it")
        known[word.sequence] = life
    return checked("every admin call has its intent and its outcome in the log", "I5", len(history.words), problems)


def _settled_later(intent: Word, takeovers: Sequence[int], history: History) -> bool:
    """Whether another leader came after the intent, and the last word on its life is an outcome."""
    last = history.words_about((intent.fact.worker, intent.fact.incarnation))[-1]
    succeeded = any(intent.sequence < taken < last.sequence for taken in takeovers)
    return succeeded and not isinstance(last.fact, Registering | Deregistering)


def _wrong(run: Run, history: History) -> Check:
    served = [request for request in run.requests if request.failure is None]
    problems = [
        f"{request.sent - run.began:.3f} s: served by {request.worker} {request.incarnation}: {reason}"
        for request in served
        if (reason := wrong(request, history)) is not None
    ]
    return checked("no request was served by a wrong or dead incarnation", "I2", len(served), problems)


def _unregistered(run: Run, history: History) -> Check:
    served = [request for request in run.requests if request.failure is None]
    problems = [
        f"{request.sent - run.began:.3f} s: served by {request.worker} {request.incarnation}"
        for request in served
        if unregistered(request, history)
    ]
    return checked("no request was served by a life after it was deregistered", "I5", len(served), problems)


def _followed(run: Run, history: History) -> Check:
    """Every kill was noticed, its registration went, and the worker is back and serves."""
    problems: list[str] = []
    for kill in run.kills:
        life = (kill.worker, kill.incarnation)
        who = f"{kill.worker} {kill.incarnation}, {kill.how} at {kill.at - run.began:.1f} s"
        if history.over(life) is None:
            problems.append(f"{who}: the log never knew that it was over")
        if history.registered(life, kill.at) and history.deregistered(life, kill.at) is None:
            problems.append(f"{who}: it was not deregistered")
        if history.registered_after(life) is None:
            problems.append(f"{who}: no later life was registered")
        elif not any(request.worker == life[0] and (request.incarnation or 0) > life[1] for request in run.requests):
            problems.append(f"{who}: no later life served a request")
    made = sum(kill.how != "node died" for kill in run.kills)
    if made != run.kills_wanted:
        problems.append(f"{made} of {run.kills_wanted} kills were made: the others' victims did not live")
    return checked("every kill was followed to the end", "I1", len(run.kills), problems)


def _met(run: Run, history: History) -> Check:
    """Nothing was lost on the way in: the log knows every life that was killed, served, or answers at the end."""
    processes: dict[Life, set[int]] = {}
    for kill in run.kills:
        pids = processes.setdefault((kill.worker, kill.incarnation), set())
        if kill.pid is not None:
            pids.add(kill.pid)
    for request in run.requests:
        if (life := life_of(request)) is not None and request.pid is not None:
            processes.setdefault(life, set()).add(request.pid)
    for entry in run.listed:
        if entry.answers is not None:
            processes.setdefault(entry.answers, set())
    problems: list[str] = []
    for life, found in sorted(processes.items()):
        if not history.heard_of(life):
            problems.append(f"{life[0]} {life[1]} is not in the log")
        if len(found) > 1:
            problems.append(f"{life[0]} {life[1]} is several processes: {', '.join(map(str, sorted(found)))}")
    return checked("every life that was met is in the log, and is one process", "I8", len(processes), problems)


def _readable(run: Run, history: History) -> Check:
    state = history.state
    problems = [f"sequence {sequence}: {bad.reason}" for sequence, bad in state.unreadable.items()]
    if state.quarantined:
        problems.append(f"{state.quarantined} messages were put in quarantine")
    problems += [f"{count} facts have the unknown type {kind}" for kind, count in state.unknown.items()]
    return checked("every message in the log is a fact", "I9", len(run.log), problems)


def _replay(run: Run, history: History) -> Check:
    problems: list[str] = []
    if history.broken is not None:
        problems.append(history.broken)
    elif history.digest is None:
        problems.append(f"the log ends at {history.state.sequence}, the controller had folded {run.live_sequence}")
    elif history.digest != run.live_digest:
        digests = f"{history.digest[:12]} after the replay, {run.live_digest[:12]} in the controller"
        problems.append(f"the state's digest at sequence {run.live_sequence} is {digests}")
    return checked("replay of the log gives the live state", "I5", run.live_sequence, problems)
