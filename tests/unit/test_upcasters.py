"""Older versions of facts, as they come out of the log."""

import pytest
from support.core import CODEC, FLEET, folded

from rollbook.events import RemovalWithheld, UnknownFact, type_of
from rollbook.events.upcasters import UPCASTERS
from rollbook.projections.ports import Stored
from rollbook.projections.state.fold import State

SUBJECT = f"rollbook.{FLEET}.proxy.a"


def message(version, pool, sequence=1):
    data = b'{"proxy":"a"%b,"workers":["rollout-0-0"],"budget":2}' % (b"" if pool is None else b',"pool":"%b"' % pool)
    payload = (
        b'{"specversion":"1.0","id":"id-%d","source":"rollbook://%b/test",'
        b'"type":"rollbook.proxy.removal_withheld.v%d","subject":"a","data":%b}'
    )
    return Stored(sequence, SUBJECT, payload % (sequence, FLEET.encode(), version, data))


def withheld(*messages):
    state = State()
    for stored in messages:
        state.apply(stored, CODEC)
    assert not state.unreadable
    assert not state.unknown
    return state.ledger.look("a").withheld


@pytest.mark.parametrize(
    ("version", "pool", "expected"),
    [(1, b"-", None), (1, b"rollout", "rollout"), (2, None, None), (2, b"-", "-"), (2, b"rollout", "rollout")],
)
def test_each_version_is_read_by_its_own_meaning(version, pool, expected):
    stored = message(version, pool)
    fact = CODEC.decode(stored.payload, subject=SUBJECT, sequence=1).fact
    assert fact == RemovalWithheld(proxy="a", pool=expected, workers=("rollout-0-0",), budget=2)
    assert type_of(fact) == "rollbook.proxy.removal_withheld.v2"


def test_i5_both_versions_in_one_log_fold_as_one():
    mixed = withheld(message(1, b"-", 1), message(2, b"-", 2), message(1, b"rollout", 3), message(2, b"rollout", 4))
    assert mixed == {"": ("rollout-0-0",), "-": ("rollout-0-0",), "rollout": ("rollout-0-0",)}


def test_a_version_of_the_future_is_kept_and_passed_over():
    state = folded()
    recorded, _ = state.apply(message(3, b"rollout"), CODEC)
    assert isinstance(recorded.fact, UnknownFact)
    assert state.unknown == {"rollbook.proxy.removal_withheld.v3": 1}


@pytest.mark.parametrize("kind", UPCASTERS)
def test_an_upcaster_leads_to_the_next_version_and_leaves_what_it_was_given(kind):
    given = {"pool": "-"}
    lifted, _ = UPCASTERS[kind](given)
    stem, _, version = kind.rpartition(".v")
    assert lifted == f"{stem}.v{int(version) + 1}"
    assert given == {"pool": "-"}
