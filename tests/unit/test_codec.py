"""Facts as bytes and back; and whatever the bytes are, only `Undecodable` comes out [I9]."""

import json
import random

import msgspec
import pytest
from golden.examples import EXAMPLES, FLEET, ID, PUBLISHER, TIME, encode, path_of
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rollbook.events import FACTS, Codec, Fact, Undecodable, UnknownFact, WorkerUp, WrongFleet, subject_of
from rollbook.events.codec import MAX_PAYLOAD
from rollbook.events.facts.base import MAX_INTEGER

CODEC = Codec(FLEET)
UP = "rollbook.worker.up.v1"
SUBJECT = f"rollbook.{FLEET}.worker.rollout-3-0"

NAMES = st.from_regex(r"\A[A-Za-z0-9_-]{1,128}\Z")
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
SUBJECTS = st.sampled_from([subject_of(fact, FLEET) for fact in EXAMPLES.values()]) | st.text(max_size=60)


def envelope(**changed):
    """A good WorkerUp as a dictionary, with changes; None leaves a field out."""
    made = json.loads(path_of(UP).read_bytes()) | changed
    return {key: value for key, value in made.items() if value is not None}


def decode(payload, subject=SUBJECT, codec=CODEC):
    if not isinstance(payload, bytes):
        payload = json.dumps(payload).encode()
    return codec.decode(payload, subject=subject, sequence=7)


def refused(payload, subject=SUBJECT, codec=CODEC):
    """The reason for which a message is undecodable."""
    with pytest.raises(Undecodable) as caught:
        decode(payload, subject, codec)
    assert len(str(caught.value)) < 1500, "an explanation does not repeat the payload"
    str(caught.value).encode()
    return caught.value.reason


# ---------------------------------------------------------------- round trip


STRATEGIES = {
    msgspec.inspect.StrType: lambda kind: TEXTS if kind.pattern is None else NAMES,
    msgspec.inspect.IntType: lambda kind: st.integers(kind.ge, kind.le),
    msgspec.inspect.FloatType: lambda kind: st.floats(
        min_value=kind.gt, max_value=kind.le, exclude_min=kind.gt is not None, allow_nan=False, allow_infinity=False
    ),
    msgspec.inspect.BoolType: lambda kind: st.booleans(),
    msgspec.inspect.NoneType: lambda kind: st.none(),
    msgspec.inspect.LiteralType: lambda kind: st.sampled_from(kind.values),
    msgspec.inspect.UnionType: lambda kind: st.one_of([strategy_of(each) for each in kind.types]),
    msgspec.inspect.VarTupleType: lambda kind: st.lists(strategy_of(kind.item_type), max_size=4).map(tuple),
    msgspec.inspect.StructType: lambda kind: facts_of(kind.cls),
}


def strategy_of(kind):
    """Values that a field's annotation allows."""
    return STRATEGIES[type(kind)](kind)


def facts_of(cls):
    fields = {}
    for field in msgspec.inspect.type_info(cls).fields:
        fields[field.name] = strategy_of(field.type)
    if "cell_size" in fields:
        fields["cell_size"] = st.integers(1, 64)
        fields["cell_incarnation"] = st.integers(1, MAX_INTEGER)
    return st.fixed_dictionaries(fields).map(lambda values: cls(**values))


ANY_FACT = st.one_of([facts_of(cls) for cls in FACTS.values()])


@pytest.mark.parametrize("kind", FACTS)
@settings(max_examples=30)
@given(data=st.data())
def test_every_fact_comes_back_as_it_was(kind, data):
    fact = data.draw(facts_of(FACTS[kind]))
    written = CODEC.draft(fact, id=ID, time=TIME, publisher=PUBLISHER)
    assert written.subject == subject_of(fact, FLEET)
    recorded = CODEC.decode(written.payload, subject=written.subject, sequence=7)
    assert recorded.fact == fact
    assert type(recorded.fact) is type(fact)
    assert (recorded.sequence, recorded.id, recorded.time) == (7, ID, TIME)


@settings(max_examples=300)
@given(ANY_FACT, ANY_FACT)
def test_a_fact_is_read_on_its_own_subject_only(fact, other):
    written = CODEC.draft(fact, id=ID, time=TIME, publisher=PUBLISHER)
    subject = subject_of(other, FLEET)
    if subject != written.subject:
        assert refused(written.payload, subject) == "subject_mismatch"


# ---------------------------------------------------------------- any bytes


def survives(payload, subject, codec=CODEC):
    """Decoding either works or raises `Undecodable`."""
    try:
        recorded = codec.decode(payload, subject=subject, sequence=7)
    except Undecodable as exc:
        str(exc).encode()
    else:
        assert isinstance(recorded.fact, Fact)
        msgspec.msgpack.encode(recorded)  # whatever is let in can be kept in a snapshot


@settings(max_examples=500)
@given(st.binary(max_size=200), SUBJECTS)
@example(b"", SUBJECT)
@example(b"\xff\xfe", SUBJECT)
@example(b"[" * 100_000, SUBJECT)
@example(b'{"a":' * 100_000, SUBJECT)
@example(b'"\\ud800"', SUBJECT)
def test_random_bytes(payload, subject):
    survives(payload, subject)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=10) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=300)
@given(JSON, SUBJECTS)
def test_random_json(value, subject):
    survives(json.dumps(value).encode(), subject)


@settings(max_examples=500)
@given(st.sampled_from(sorted(FACTS)), st.data(), SUBJECTS)
def test_good_envelopes_with_a_field_replaced(kind, data, subject):
    made = json.loads(encode(EXAMPLES[kind]))
    where = data.draw(st.sampled_from([made, made["data"]]))
    key = data.draw(st.sampled_from(sorted(where)))
    where[key] = data.draw(JSON)
    payload = json.dumps(made).encode()
    survives(payload, subject)
    survives(payload, subject_of(EXAMPLES[kind], FLEET))


@settings(max_examples=500)
@given(st.sampled_from(sorted(FACTS)), st.randoms(use_true_random=False))
def test_good_envelopes_with_bytes_changed(kind, rng: random.Random):
    payload = bytearray(encode(EXAMPLES[kind]))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(payload))
        match rng.randrange(4):
            case 0:
                payload[at] = rng.randrange(256)
            case 1:
                del payload[at]
            case 2:
                payload.insert(at, rng.randrange(256))
            case _:
                del payload[at:]
        if not payload:
            break
    survives(bytes(payload), subject_of(EXAMPLES[kind], FLEET))


# ---------------------------------------------------------------- one kind of bad input each


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "empty"),
        (b"\x00\xff garbage", "not_json"),
        (b"hello", "not_json"),
        (b"{", "not_json"),
        (b"null", "wrong_shape"),
        (b"[]", "wrong_shape"),
        (b'"text"', "wrong_shape"),
        (b"{}", "wrong_shape"),
        (b"NaN", "not_json"),
        (b"[" * 50_000 + b"]" * 50_000, "wrong_shape"),
        (envelope(id=None), "wrong_shape"),
        (envelope(id=""), "wrong_shape"),
        (envelope(id=7), "wrong_shape"),
        (envelope(id="i" * 257), "wrong_shape"),
        (envelope(type=None), "wrong_shape"),
        (envelope(type=""), "wrong_shape"),
        (envelope(type="t" * 100_000), "wrong_shape"),
        (envelope(type=["rollbook.worker.up.v1"]), "wrong_shape"),
        (envelope(source=None), "wrong_shape"),
        (envelope(time="t" * 65), "wrong_shape"),
        (envelope(data=None), "wrong_shape"),
        (envelope(data="text"), "wrong_shape"),
        (envelope(data=[1]), "wrong_shape"),
        (envelope(data={}), "wrong_shape"),
        (envelope(specversion=None), "wrong_shape"),
        (envelope(specversion="0.3"), "wrong_specversion"),
        (envelope(specversion="2.0", data="of another shape"), "wrong_specversion"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_what_is_no_envelope(payload, reason):
    assert refused(payload) == reason


@pytest.mark.parametrize(
    "field",
    [
        {"worker": 7},
        {"worker": "a.b"},
        {"worker": "rollout-3-0\n"},
        {"worker": "*"},
        {"incarnation": 0},
        {"incarnation": -1},
        {"incarnation": 1.5},
        {"incarnation": "8"},
        {"incarnation": True},
        {"incarnation": MAX_INTEGER + 1},
        {"incarnation": 10**30},
        {"incarnation": 10**400},
        {"incarnation": float("inf")},
        {"incarnation": float("nan")},
        {"seen": -1},
        {"pool": "a b"},
        {"rank": -1},
        {"cell_incarnation": None},
        {"cell_size": 0},
        {"worker": "rollout-3-0\ud800"},
    ],
    ids=repr,
)
def test_what_is_no_fact(field):
    made = envelope()
    made["data"] = made["data"] | field
    assert refused(made) in {"wrong_shape", "not_json"}


def test_a_payload_of_a_megabyte():
    padded = envelope(padding="x" * 1_048_576)
    assert refused(padded) == "too_large"
    largest = envelope(padding="x" * (MAX_PAYLOAD - 1000))
    assert decode(largest).fact == EXAMPLES[UP]


@pytest.mark.parametrize(
    ("payload", "subject"),
    [
        (envelope(source="rollbook://other/p"), SUBJECT),
        (envelope(source="rollbook://math-rl-2/p"), SUBJECT),
        (envelope(source="https://example.org"), SUBJECT),
        (envelope(), "rollbook.other.worker.rollout-3-0"),
        (envelope(source="rollbook://other/p"), "rollbook.other.worker.rollout-3-0"),
        (envelope(source="rollbook://other/p", type="rollbook.worker.danced.v1"), SUBJECT),
    ],
    ids=repr,
)
def test_another_fleets_fact(payload, subject):
    with pytest.raises(WrongFleet, match="fleet 'math-rl'"):
        decode(payload, subject)
    assert refused(payload, subject) == "wrong_fleet"


@pytest.mark.parametrize(
    ("payload", "subject"),
    [
        (envelope(subject="rollout-4-0"), SUBJECT),
        (envelope(subject=None), SUBJECT),
        (envelope(), f"rollbook.{FLEET}.worker.rollout-4-0"),
        (envelope(subject="rollout-4-0"), f"rollbook.{FLEET}.worker.rollout-4-0"),
        (envelope(), f"rollbook.{FLEET}.proxy.rollout-3-0"),
        (envelope(), f"rollbook.{FLEET}.operator.worker.rollout-3-0"),
        (envelope(subject=None), f"rollbook.{FLEET}.fleet"),
        (encode(EXAMPLES["rollbook.operator.worker_cordoned.v1"]), f"rollbook.{FLEET}.operator.proxy.rollout-3-0"),
        (encode(EXAMPLES["rollbook.operator.reconcile_held.v1"]), f"rollbook.{FLEET}.operator.worker.router-a"),
        (encode(EXAMPLES["rollbook.operator.reconcile_held.v1"]), f"rollbook.{FLEET}.operator.fleet"),
        (encode(EXAMPLES["rollbook.operator.reconcile_released.v1"]), f"rollbook.{FLEET}.operator.proxy.router-a"),
        (encode(EXAMPLES["rollbook.fleet.started.v1"]), f"rollbook.{FLEET}.quarantine"),
        (encode(EXAMPLES["rollbook.fleet.started.v1"]), f"rollbook.{FLEET}.operator.fleet"),
        (encode(EXAMPLES["rollbook.proxy.registered.v1"]), SUBJECT),
        (envelope(type="rollbook.proxy.danced.v1"), SUBJECT),
        (envelope(type="rollbook.worker.danced.v1", subject="rollout-4-0"), SUBJECT),
    ],
)
def test_an_envelope_that_disagrees_with_its_subject(payload, subject):
    assert refused(payload, subject) == "subject_mismatch"


@pytest.mark.parametrize("subject", ["", "rollbook.math-rl.x", "rollbook.math-rl.None", SUBJECT + ".x", SUBJECT + "\n"])
def test_a_subject_of_no_fact(subject):
    for payload in (envelope(), envelope(subject=None), encode(EXAMPLES["rollbook.fleet.started.v1"])):
        assert refused(payload, subject) == "invalid_subject"


# ---------------------------------------------------------------- what later versions wrote


def test_unknown_fields_are_passed_over():
    made = envelope(traceparent="00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01")
    made["data"] = made["data"] | {"mood": ["good"], "nested": {"deep": [1, 2, {"x": None}]}}
    assert decode(made).fact == EXAMPLES[UP]


@pytest.mark.parametrize("kind", ["rollbook.worker.danced.v1", "rollbook.worker.up.v2", "org.example.thing"])
def test_an_unknown_type_or_version_is_kept_byte_for_byte(kind):
    data = '{ "worker": "rollout-3-0",\t"mood":"Ünhappy" , "n": 1e3, "deep":[[]]}'
    payload = json.dumps(envelope(type=kind, data="DATA")).replace('"DATA"', data).encode()
    recorded = decode(payload)
    assert recorded.fact == UnknownFact(type=kind, data=msgspec.Raw(data.encode()))
    assert bytes(recorded.fact.data) == data.encode()
    assert recorded.id == ID


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"a":"\xff"}', "not_json"),
        (b'{"a":"\\ud800"}', "not_json"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not_json"),
        (b'{"a":1' + b"0" * 5000 + b"}", "wrong_shape"),
    ],
    ids=["utf-8", "surrogate", "deep", "huge"],
)
def test_an_unknown_fact_that_nobody_could_read_later_is_not_kept(data, reason):
    payload = json.dumps(envelope(type="rollbook.worker.danced.v1", data="DATA")).encode().replace(b'"DATA"', data)
    assert refused(payload) == reason


@pytest.mark.parametrize("frames", [0, 300])
@pytest.mark.parametrize(
    ("value", "good"),
    [
        (b"[" * 398 + b"]" * 398, True),
        (b"[" * 399 + b"]" * 399, False),
        (b'{"a":' * 399 + b"1" + b"}" * 399, False),
        (b"[" + b"[],{}," * 500 + b"1]", True),
        (b'"' + b'\\"[{' * 500 + b'"', True),
    ],
    ids=["deep", "deeper", "objects", "wide", "text"],
)
def test_i5_how_deep_a_fact_may_nest_is_not_for_the_readers_stack_to_say(value, good, frames):
    made = envelope()
    made["data"] = made["data"] | {"more": "MORE"}
    payload = json.dumps(made).encode().replace(b'"MORE"', value)

    def read(frames):
        if frames:
            return read(frames - 1)
        return decode(payload).fact == EXAMPLES[UP] if good else refused(payload) == "not_json"

    assert read(frames)


# ---------------------------------------------------------------- what earlier versions wrote


def from_v_minus_1(fields):
    return "rollbook.worker.up.v0", {"name": fields["who"], "life": fields["life"]}


def from_v0(fields):
    return UP, {"worker": fields["name"], "incarnation": fields["life"]}


LIFTING = Codec(FLEET, upcasters={"rollbook.worker.up.vOld": from_v_minus_1, "rollbook.worker.up.v0": from_v0})


def test_an_older_version_is_lifted_step_by_step():
    expected = WorkerUp(worker="rollout-3-0", incarnation=8)
    v0 = envelope(type="rollbook.worker.up.v0", data={"name": "rollout-3-0", "life": 8})
    older = envelope(type="rollbook.worker.up.vOld", data={"who": "rollout-3-0", "life": 8, "unheard": [1]})
    for payload in (v0, older):
        recorded = decode(payload, codec=LIFTING)
        assert recorded.fact == expected
        assert (recorded.id, recorded.sequence) == (ID, 7)
    assert isinstance(decode(v0).fact, UnknownFact), "without the upcaster it is kept as it is"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({}, "upcast_failed"),
        ({"who": "rollout-3-0"}, "upcast_failed"),
        ("text", "wrong_shape"),
        ([], "wrong_shape"),
        ({"who": "rollout-3-0", "life": 0}, "wrong_shape"),
        ({"who": "rollout-3-0", "life": None}, "wrong_shape"),
        ({"who": "a.b", "life": 1}, "wrong_shape"),
        ({"who": "rollout-4-0", "life": 1}, "subject_mismatch"),
    ],
    ids=repr,
)
def test_an_older_version_that_cannot_be_lifted_is_quarantined(data, reason):
    assert refused(envelope(type="rollbook.worker.up.vOld", data=data), codec=LIFTING) == reason


def test_upcasters_that_lead_nowhere_keep_the_fact_as_it_is():
    circle = {"rollbook.worker.up.v0": lambda fields: ("rollbook.worker.up.v00", fields)}
    circle["rollbook.worker.up.v00"] = lambda fields: ("rollbook.worker.up.v0", fields)
    made = envelope(type="rollbook.worker.up.v0", data={"x": 1})
    assert decode(made, codec=Codec(FLEET, upcasters=circle)).fact == UnknownFact(
        type="rollbook.worker.up.v0", data=msgspec.Raw(b'{"x": 1}')
    )


@settings(max_examples=200)
@given(JSON, SUBJECTS)
def test_random_data_of_an_older_version(data, subject):
    payload = json.dumps(envelope(type="rollbook.worker.up.vOld", data=data)).encode()
    survives(payload, subject, LIFTING)
    survives(payload, SUBJECT, LIFTING)
