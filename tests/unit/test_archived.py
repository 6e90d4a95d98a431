"""Notes of an archive in an envelope: they come off again without a trace, and nobody else's bytes look like them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.core import CODEC, TIME, stored

from rollbook.events import WorkerUp
from rollbook.events.archived import Notes, add_notes, read_notes, without_notes

NOTES = Notes(17, 1_764_000_000.123456, "rollbook.f.worker.w")
PAYLOAD = stored(17, WorkerUp(worker="w", incarnation=1)).payload


def test_a_noted_envelope_is_the_same_fact_and_the_notes_come_off_again():
    noted = add_notes(PAYLOAD, NOTES)
    assert read_notes(noted) == NOTES
    assert without_notes(noted) == PAYLOAD
    recorded = CODEC.decode(noted, subject=NOTES.subject, sequence=17)
    assert (recorded.fact, recorded.time) == (WorkerUp(worker="w", incarnation=1), TIME)


@given(st.floats(min_value=0, max_value=4e9))
def test_a_time_that_was_noted_once_stays_as_it_is(moment):
    once = read_notes(add_notes(PAYLOAD, Notes(1, moment, "rollbook.f.fleet"))).stored_at
    assert read_notes(add_notes(PAYLOAD, Notes(1, once, "rollbook.f.fleet"))).stored_at == once
    assert abs(once - moment) <= 1e-6


@pytest.mark.parametrize(
    "payload", [b"", b"{}", b"[]", b"\xff", b'{"a":\n1}', add_notes(PAYLOAD, NOTES), b'{"archivedsequence":"1"}']
)
def test_what_cannot_take_notes_gets_none(payload):
    assert add_notes(payload, NOTES) is None


@given(st.binary())
def test_no_bytes_break_the_reading_of_notes(payload):
    assert without_notes(payload) == payload or read_notes(payload) is not None
    read_notes(b'{"archivedsequence":"' + payload)


@pytest.mark.parametrize(
    "subject", ["rollbook.f.worker.\x1b[31m", "rollbook.f.worker.w/1", "rollbook.f.worker.wörk", "%41", "a" * 4096]
)
def test_a_subject_that_is_no_facts_is_noted_with_every_letter(subject):
    assert read_notes(add_notes(PAYLOAD, Notes(1, 1.0, subject))).subject == subject


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "1969-12-31T23:59:59.00Z"])
def test_a_time_that_no_log_has_is_no_note(time):
    """Anybody may publish what looks like notes, and no time in it may end a command that shows times."""
    noted = add_notes(PAYLOAD, NOTES)
    forged = noted.replace(noted[noted.index(b"2025") :][:27], time.encode(), 1)
    assert forged != noted
    assert read_notes(forged) is None


@pytest.mark.parametrize("moment", [-1.0, 1e11, float("inf"), float("nan")])
def test_a_time_that_no_log_has_is_not_noted(moment):
    assert add_notes(PAYLOAD, Notes(1, moment, "rollbook.f.fleet")) is None
