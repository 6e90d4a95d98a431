"""The story of a worker as a person reads it at 3 a.m.: one fact a line, what it did, and how long each step took."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rollbook.adapters.cli.lines import describe_fact, short
from rollbook.adapters.cli.output import Piece, one_line
from rollbook.adapters.cli.status import PHASES, span
from rollbook.events import Deregistering, OperatorFact, Registering, RegistrationFact, RegistrationFailed
from rollbook.events.times import rfc3339
from rollbook.projections.history.narrative import Event, Life, Narrative, Passage, StandsNow, Step, Verdict

LONGEST_SHOWN: Final = 300
_ADMISSION: Final = (
    "Before an add, address_known, address_free and ready are asked of provider and worker. They leave no fact: "
    "waiting for them is part of the time until decided."
)
_INDENT: Final = " " * 10


def render(story: Narrative) -> Iterator[list[Piece]]:
    """All of it: the end first, then the lives in order, then how long the changes took."""
    yield [
        (story.worker, "bold"),
        ("  life ", "dim"),
        str(story.incarnation),
        "  ",
        (story.phase, PHASES.get(story.phase, "")),
        (f"  in fleet {story.fleet} at sequence {story.sequence}", "dim"),
    ]
    for stands in story.now:
        yield _stands(stands)
    for note in story.notes:
        yield [(f"note: {note}", "yellow")]
    for life in story.lives:
        yield []
        yield from _life(life)
    if story.passages:
        yield []
        yield from _passages(story)


def _stands(stands: StandsNow) -> list[Piece]:
    failed = stands.verdict.failed
    line: list[Piece] = [f"  at {stands.verdict.proxy}: "]
    if failed is None:
        line.append(("wanted", "green"))
    else:
        line.append((f"kept out by {failed.gate}: {_short(failed.reason)}", "yellow"))
    if stands.told is None:
        line.append("; not registered in this life")
    else:
        why = f" ({_short(stands.reason)})" if stands.reason else ""
        line.append(f"; {stands.told} at {_short(stands.url or '')}{why} (#{stands.since})")
    if stands.held is not None:
        line.append((f"; {_short(stands.held)}", "yellow"))
    return line


def _life(life: Life) -> Iterator[list[Piece]]:
    title = f"life {life.incarnation}" if life.incarnation else "before any life"
    yield [(f"── {title} ", "bold"), ("─" * max(4, 60 - len(title)), "dim")]
    previous: float | None = None
    for event in life.events:
        yield _event(event, previous)
        previous = event.stored_at
        yield from _details(event)


def _event(event: Event, previous: float | None) -> list[Piece]:
    gap = "" if previous is None else f"+{seconds(max(0.0, event.stored_at - previous))}"
    kind = short(event.type)
    style = "dim" if event.ignored is not None else ("red" if isinstance(event.fact, RegistrationFailed) else "")
    who = event.source.rpartition("/")[2] or event.source
    by = f"{event.fact.by} through {who}" if isinstance(event.fact, OperatorFact) else who
    proxy = f"{event.about} " if event.type.startswith("rollbook.proxy.") else ""
    said = proxy + describe_fact(event.fact, without="worker")
    return [
        (f"{event.sequence:>8}", "cyan"),
        "  ",
        (rfc3339(event.stored_at)[11:23], "dim"),
        (f" {gap:>9}  ", "dim"),
        (f"{kind:<24}", style),
        (f" {said}" if said else "", style),
        (f"  by {one_line(by, LONGEST_SHOWN)}", "dim"),
    ]


def _details(event: Event) -> Iterator[list[Piece]]:
    for effect in event.effects:
        yield [f"{_INDENT}=> ", (_short(effect), "bold")]
    if event.ignored is not None:
        after = "" if event.superseded_by is None else f"; it came after #{event.superseded_by}"
        yield [f"{_INDENT}=> ", (f"ignored: {event.ignored}{after}", "yellow")]
    for verdict in event.verdicts:
        yield [f"{_INDENT}=> at {verdict.proxy}: ", *_gates(verdict)]
    if event.step is not None and isinstance(event.fact, RegistrationFact):
        yield [f"{_INDENT}=> ", *_step(event.fact, event.step)]


def _gates(verdict: Verdict) -> Iterator[Piece]:
    passed = [gate.gate for gate in verdict.gates if gate.passed]
    failed = verdict.failed
    yield ("wanted" if failed is None else "not wanted", "green" if failed is None else "red")
    yield (f" ({' '.join(f'{gate} ok' for gate in passed)}" if passed else " (", "dim")
    if failed is not None:
        yield (" " if passed else "") + f"{failed.gate} NO: {_short(failed.reason)}"
    yield (")", "dim")


def _step(fact: RegistrationFact, step: Step) -> Iterator[Piece]:
    if isinstance(fact, Registering | Deregistering):
        took = "" if step.seconds is None else f", {seconds(step.seconds)} after it"
        cause = "" if step.cause in {0, step.because} else f" (the worker's last fact: #{step.cause})"
        yield f"decided because of #{step.because}{took}{cause}" if step.because else "decided"
    elif step.seconds is None and isinstance(fact, RegistrationFailed):
        yield f"failed; its intent #{step.cause} is older than this story"
    elif step.seconds is None:
        yield "found so when the proxy was read back" + (f"; left open by #{step.cause}" if step.cause else "")
    else:
        verb = "failed" if isinstance(fact, RegistrationFailed) else "confirmed"
        yield f"{verb} {seconds(step.seconds)} after #{step.cause}"
    if step.slowest:
        yield ("  <- slowest step", "bold red")


def _passages(story: Narrative) -> Iterator[list[Piece]]:
    slowest = max((one for p in story.passages for one in (p.to_decide, p.to_answer) if one is not None), default=None)
    yield [("── how long it took ", "bold"), ("─" * 42, "dim")]
    yield [(f"{'proxy':<18}{'life':<6}{'change':<12}{'after':<10}{'decided':<11}{'answered':<11}in all", "dim")]
    for passage in story.passages:
        yield _passage(passage, slowest)
    yield [(_ADMISSION, "dim")]


def _passage(passage: Passage, slowest: float | None) -> list[Piece]:
    def cell(value: float | None) -> Piece:
        text = f"{'-' if value is None else '+' + seconds(value):<11}"
        return (text, "bold red") if value is not None and value == slowest and value > 0 else text

    marked = slowest is not None and slowest > 0 and slowest in {passage.to_decide, passage.to_answer}
    style = {"confirmed": "green", "failed": "red", "unanswered": "bold red"}.get(passage.result, "")
    whole = "-" if passage.in_all is None else f"{seconds(passage.in_all)} since #{passage.cause}"
    return [
        f"{passage.proxy:<17} {passage.incarnation:<6}{passage.action:<12}",
        f"{'#' + str(passage.because) if passage.because else '-':<10}",
        cell(passage.to_decide),
        cell(passage.to_answer),
        f"{whole:<20}",
        (passage.result, style),
        ("  <- slowest", "bold red") if marked else "",
    ]


def _short(text: str) -> str:
    return one_line(text, LONGEST_SHOWN)


def seconds(value: float) -> str:
    """`4ms`, `1.25s`, `3m12s`, `5h03m`, `2d04h`."""
    if value < 1:
        return f"{value * 1000:.0f}ms"
    if value < 60:  # noqa: PLR2004 - seconds in a minute
        return f"{value:.2f}s"
    return span(int(value))
