"""Subjects: every fact has exactly one, and nothing else parses."""

import pytest
from golden.examples import EXAMPLES, FLEET
from hypothesis import given
from hypothesis import strategies as st

from rollbook.events import (
    InvalidSubject,
    ReconcileHeld,
    Subject,
    UnknownFact,
    parse_subject,
    stream_name,
    stream_subjects,
    subject_of,
)
from rollbook.events.subjects import entity_of, operator_worker_subject, proxy_subject, worker_subject

NAMES = st.from_regex(r"\A[A-Za-z0-9_-]{1,128}\Z")


def matches(pattern, subject):
    """As a NATS server matches: `*` is one token."""
    ours, theirs = pattern.split("."), subject.split(".")
    return len(ours) == len(theirs) and all(a in ("*", b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("kind", EXAMPLES)
def test_every_fact_has_a_subject_that_its_stream_takes(kind):
    fact = EXAMPLES[kind]
    subject = subject_of(fact, FLEET)
    assert [p for p in stream_subjects(FLEET) if matches(p, subject)], subject
    parsed = parse_subject(subject)
    assert (parsed.fleet, parsed.family, parsed.entity) == (FLEET, fact.FAMILY, entity_of(fact))
    assert kind.split(".")[1] == parsed.family


def test_the_stream_takes_families_and_not_everything():
    assert stream_name("f") == "ROLLBOOK_f"
    assert not [pattern for pattern in stream_subjects("f") if ">" in pattern]
    assert not [p for p in stream_subjects("f") if matches(p, "rollbook-rpc.f.status")]


def test_a_decision_about_all_proxies_stands_with_the_fleet():
    everything = ReconcileHeld(by="ada", why="x")
    assert subject_of(everything, "f") == "rollbook.f.operator.fleet"
    assert parse_subject("rollbook.f.operator.fleet") == Subject("f", "operator", "fleet", None)


@given(NAMES, NAMES)
def test_subjects_are_parsed_back(fleet, name):
    assert parse_subject(worker_subject(fleet, name)) == Subject(fleet, "worker", "worker", name)
    assert parse_subject(proxy_subject(fleet, name)) == Subject(fleet, "proxy", "proxy", name)
    assert parse_subject(operator_worker_subject(fleet, name)) == Subject(fleet, "operator", "worker", name)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "rollbook",
        "rollbook.f",
        "rollbook.f.worker",
        "rollbook.f.worker.",
        "rollbook..worker.w",
        "rollbook.f.worker.a.b",
        "rollbook.f.worker.*",
        "rollbook.f.worker.a\n",
        "rollbook.f.worker.a b",
        "rollbook.f\n.worker.a",
        "rollbook.f.operator.w",
        "rollbook.f.operator.cell.w",
        "rollbook.f.fleet.x",
        "rollbook.f.unheard",
        "rollbook-rpc.f.worker.a",
        "x" * 100_000,
    ],
)
def test_anything_else_is_refused(subject):
    with pytest.raises(InvalidSubject) as caught:
        parse_subject(subject)
    assert len(str(caught.value)) < 1000


@given(st.text() | st.lists(st.text(max_size=5), max_size=6).map(".".join))
def test_any_text_is_parsed_or_refused(text):
    try:
        parsed = parse_subject(text)
    except InvalidSubject:
        return
    assert f"rollbook.{parsed.fleet}." in text


def test_an_unknown_fact_has_no_subject():
    with pytest.raises(InvalidSubject, match="UnknownFact has no subject"):
        subject_of(UnknownFact(type="rollbook.worker.danced.v1", data=b"{}"), "f")
