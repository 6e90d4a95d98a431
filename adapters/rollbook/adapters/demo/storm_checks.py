"""What a run is held to beside `checks`: who wrote, what was not Rollbook's, and whether every part came back."""

from __future__ import annotations

from rollbook.adapters.demo.history import History
from rollbook.adapters.demo.promise import Check, checked
from rollbook.adapters.demo.records import Foreign, Run
from rollbook.events import DriftFound, LeadershipTaken, RegistrationFact
from rollbook.events.facts.proxy import ForeignFact


def one_writer(history: History) -> Check:
    """Between two takeovers every word about the router is its leader's, and epochs only rise."""
    owner, epoch = "", 0
    problems: list[str] = []
    for written in history.written:
        fact, author = written.fact, written.source.rpartition("/")[2]
        what = f"sequence {written.sequence}: {type(fact).__name__} by {author}"
        if isinstance(fact, LeadershipTaken):
            if fact.epoch <= epoch:
                problems.append(f"{what} of epoch {fact.epoch}, after {epoch}")
            owner, epoch = fact.owner, fact.epoch
        if author != owner:
            problems.append(f"{what}, and {owner or 'nobody'} leads")
    return checked("one controller at a time wrote to the router's subject", "I7", len(history.written), problems)


def left_alone(foreign: Foreign, history: History) -> Check:
    """The entry that the demo made itself is reported as foreign, never touched, and there at the end."""
    about = [one for one in history.written if _is_about(one.fact, foreign.url)]
    reported = [one for one in about if isinstance(one.fact, DriftFound)]
    problems = [
        f"sequence {one.sequence}: {type(one.fact).__name__}" for one in about if not isinstance(one.fact, DriftFound)
    ]
    if not foreign.listed:
        problems.append(f"{foreign.url} is not listed at the end")
    if not reported:
        problems.append(f"{foreign.url} was never reported as foreign")
    return checked("an entry that Rollbook did not make was left alone", "I11", len(about), problems)


def _is_about(fact: object, url: str) -> bool:
    if isinstance(fact, RegistrationFact | ForeignFact):
        return fact.url == url
    return isinstance(fact, DriftFound) and url in fact.foreign


def all_back(run: Run) -> Check:
    """Every fault was carried out, and every part did its work again."""
    problems = [
        f"{one.what} at {one.at - run.began:.1f} s: {one.whom} did not come back"
        for one in run.disturbances
        if one.until is None
    ]
    if len(run.disturbances) != run.faults_wanted:
        problems.append(f"{len(run.disturbances)} of {run.faults_wanted} faults were carried out")
    return checked("every part that was hurt did its work again", "I1", len(run.disturbances), problems)
