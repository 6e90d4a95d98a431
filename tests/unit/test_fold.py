"""The fold of the whole log: in order or not at all, whatever the bytes are, and the same from a snapshot."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.core import CODEC, FLEET, TIME, folded, garbage, stored
from support.histories import HISTORIES, a_history

from rollbook.events import Codec, MessageQuarantined, Registered, WorkerUp, stream_subjects
from rollbook.projections.ports import Stored
from rollbook.projections.state import fold
from rollbook.projections.state.fold import OutOfOrder, State, Unreadable, message_id, restore
from rollbook.projections.state.ledger import ProxyRecord

W = "rollout-0-0"
UP = WorkerUp(worker=W, incarnation=1)
WORKER, QUARANTINE = f"rollbook.{FLEET}.worker.{W}", f"rollbook.{FLEET}.quarantine"


def envelope(kind, data, *, subject=W, fleet=FLEET):
    body = {
        "specversion": "1.0",
        "id": "one",
        "source": f"rollbook://{fleet}/test",
        "type": kind,
        "time": TIME,
        "subject": subject,
        "data": data,
    }
    return msgspec.json.encode(body)


@pytest.mark.parametrize("sequence", [0, 1, 3, 9])
def test_only_the_very_next_message_is_taken(sequence):
    state = folded(UP)
    before = state.encode()
    with pytest.raises(OutOfOrder, match=f"expected sequence 2 and was handed {sequence}") as caught:
        state.apply(stored(sequence, UP), CODEC)
    assert (caught.value.expected, caught.value.got) == (2, sequence)
    assert state.encode() == before


def test_each_fact_goes_to_its_fold():
    state = folded(UP, Registered(proxy="a", worker=W, incarnation=1, url="http://10.0.0.1:1"))
    assert set(state.roster.workers) == {W}
    assert set(state.ledger.proxies) == {"a"}
    assert state.sequence == 2


# ---------------------------------------------------------------- what cannot be read


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "empty"),
        (b"\xff not json", "not_json"),
        (b"[1, 2]", "wrong_shape"),
        (envelope("rollbook.worker.up.v1", {"worker": W, "incarnation": 0}), "wrong_shape"),
        (envelope("rollbook.worker.up.v1", {"worker": "b", "incarnation": 1}, subject="b"), "subject_mismatch"),
        (envelope("rollbook.worker.up.v1", {"worker": W, "incarnation": 1}, fleet="g"), "wrong_fleet"),
        (b"x" * 1_000_000, "too_large"),
    ],
)
def test_what_cannot_be_read_is_kept_aside_with_its_reason(payload, reason):
    """[I9]."""
    state = folded(UP)
    recorded, change = state.apply(garbage(2, WORKER, payload), CODEC)
    assert recorded is None
    assert "unreadable" in change.ignored
    assert (state.unreadable[2].subject, state.unreadable[2].reason) == (WORKER, reason)
    state.apply(stored(3, WorkerUp(worker=W, incarnation=2)), CODEC)
    assert state.roster.workers[W].incarnation == 2


def test_another_fleets_fact_is_kept_aside():
    """[I9]."""
    state = State()
    state.apply(stored(1, UP, codec=Codec("g")), CODEC)
    assert state.unreadable[1].reason == "wrong_fleet"
    assert state.roster.workers == {}


def test_quarantined_messages_are_counted_and_kept_aside_no_longer():
    state = State()
    state.apply(garbage(1, WORKER), CODEC)
    written = MessageQuarantined(sequence=1, subject=WORKER, reason="not_json")
    state.apply(stored(2, written), CODEC)
    state.apply(stored(3, written, "again"), CODEC)
    assert (state.unreadable, state.quarantined) == ({}, 1)


def test_garbage_on_the_quarantine_subject_is_only_counted():
    """[I9]: otherwise one bad message there would call for another."""
    state = State()
    state.apply(garbage(1, QUARANTINE), CODEC)
    assert (state.unreadable, state.quarantined) == ({}, 1)


@pytest.mark.parametrize("subject", [f"rollbook.{FLEET}.worker.quarantine", f"rollbook.{FLEET}.proxy.quarantine"])
def test_something_named_quarantine_is_not_the_quarantine_subject(subject):
    """[I9]."""
    state = State()
    state.apply(garbage(1, subject), CODEC)
    assert state.unreadable == {1: Unreadable(subject, "not_json", state.unreadable[1].detail)}


def test_unknown_types_and_versions_are_counted_and_change_nothing_else():
    state = folded(UP)
    roster = msgspec.msgpack.encode(state.roster)
    for sequence, kind in enumerate(["rollbook.worker.up.v9", "rollbook.worker.sang.v1", "rollbook.worker.up.v9"], 2):
        recorded, change = state.apply(Stored(sequence, WORKER, envelope(kind, {"a": 1})), CODEC)
        assert recorded is not None
        assert change.ignored
    assert state.unknown == {"rollbook.worker.up.v9": 2, "rollbook.worker.sang.v1": 1}
    assert (state.unreadable, msgspec.msgpack.encode(state.roster)) == ({}, roster)


SUBJECTS = [subject.replace("*", "some-1-0") for subject in stream_subjects(FLEET)]


@given(st.lists(st.tuples(st.sampled_from([*SUBJECTS, "elsewhere", ""]), st.binary(max_size=80)), max_size=20))
def test_no_message_stops_the_fold(messages):
    """[I9]."""
    state = State()
    for sequence, (subject, payload) in enumerate(messages, 1):
        state.apply(Stored(sequence, subject, payload), CODEC)
    assert state.sequence == len(messages)
    assert len(state.unreadable) + state.quarantined == len(messages)
    assert restore(state.snapshot("log", "id")) is not None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    "worker",
    "incarnation",
    "seen",
    "pool",
    "cell",
    "rank",
    "cell_size",
    "cell_incarnation",
    "entrypoint",
    "until",
)
KINDS = ("up", "down", "suspended", "weights_loaded", "started")


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(FIELDS), JSON)), max_size=10))
def test_no_fact_of_a_strange_shape_stops_the_fold(facts):
    """[I9]: also none that is nearly right."""
    state = State()
    for sequence, (kind, fields) in enumerate(facts, 1):
        try:
            payload = envelope(f"rollbook.worker.{kind}.v1", {"worker": W, "incarnation": sequence, **fields})
        except msgspec.MsgspecError:
            payload = b""
        state.apply(Stored(sequence, WORKER, payload), CODEC)
    assert restore(state.snapshot("log", "id")) is not None


# ---------------------------------------------------------------- snapshots


def test_a_snapshot_restores_the_state():
    state = folded(*a_history(3))
    snapshot = state.snapshot("log", "fact")
    assert (snapshot.identity, snapshot.fact_id, snapshot.sequence) == ("log", "fact", 300)
    assert restore(snapshot).digest() == state.digest() == snapshot.digest


@given(HISTORIES, st.sampled_from([1, 2, 3, 200]))
def test_in_pieces_it_is_the_same_bytes(history, size):
    """[I5]."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fold, "_PIECE", size)
        state = folded(*history)
        assert b"".join(state.pieces()) == state.encode()


def test_large_states_are_the_same_bytes_in_pieces():
    state = folded(*(WorkerUp(worker=f"rollout-{number}-0", incarnation=1) for number in range(70_000)))
    for number in range(300):
        record = state.ledger.proxies.setdefault(f"router-{number % 20}", ProxyRecord())
        record.registrations[f"rollout-{number}-0"] = {}
    pieces = list(state.pieces())
    assert b"".join(pieces) == state.encode()
    assert max(map(len, pieces)) < 100_000


def test_a_snapshot_is_not_changed_by_what_is_folded_afterwards():
    state = folded(UP)
    snapshot = state.snapshot("log", "fact")
    state.apply(stored(2, WorkerUp(worker=W, incarnation=2)), CODEC)
    assert restore(snapshot).roster.workers[W].incarnation == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": 999},
        {"digest": "0" * 64},
        {"body": b"\x00"},
        {"body": b""},
        {"sequence": 7},
    ],
)
def test_a_snapshot_of_another_version_or_damaged_is_not_restored(changes):
    assert restore(msgspec.structs.replace(folded(UP).snapshot("log", "fact"), **changes)) is None


def test_a_damaged_body_with_a_right_digest_is_not_restored():
    import hashlib

    body = b"\xc1 no msgpack"
    snapshot = msgspec.structs.replace(
        folded(UP).snapshot("log", "fact"), body=body, digest=hashlib.sha256(body).hexdigest()
    )
    assert restore(snapshot) is None


def test_a_message_is_known_by_subject_and_bytes():
    one = message_id(stored(1, UP))
    assert one == message_id(stored(9, UP, "id-1"))
    assert len({one, message_id(Stored(1, "else", stored(1, UP).payload)), message_id(garbage(1, WORKER))}) == 3
