"""Facts into folds without a log: what the tests of the pure core share."""

from __future__ import annotations

import msgspec

from rollbook.events import Codec, Fact, Recorded
from rollbook.projections.policy import Policy, PoolPolicy, ProxyPolicy
from rollbook.projections.ports import Stored
from rollbook.projections.state.fold import State
from rollbook.projections.state.roster import Change, Roster

FLEET = "f"
CODEC = Codec(FLEET)
TIME = "2026-01-01T00:00:00Z"
PROXY = ProxyPolicy(name="router", pools=("rollout",))
POLICY = Policy(fleet=FLEET, pools={"rollout": PoolPolicy()}, proxies={"router": PROXY})


class Book:
    """A roster and the sequence at which it stands."""

    def __init__(self) -> None:
        self.roster = Roster()
        self.sequence = 0

    def say(self, fact: Fact, fact_id: str | None = None) -> Change:
        self.sequence += 1
        return self.roster.apply(Recorded(self.sequence, fact_id or f"id-{self.sequence}", TIME, "test", fact))

    def all(self, *facts: Fact) -> Change:
        """Say them one after the other; the last one's change."""
        return [self.say(fact) for fact in facts][-1]


def bare(roster: Roster) -> bytes:
    """All that a roster holds, without the ids that it remembers."""
    copy = msgspec.msgpack.decode(msgspec.msgpack.encode(roster), type=Roster)
    copy.recent, copy.decided = {}, {}
    return msgspec.msgpack.encode(copy)


def stored(sequence: int, fact: Fact, fact_id: str | None = None, *, codec: Codec = CODEC) -> Stored:
    """A fact as the log holds it."""
    draft = codec.draft(fact, id=fact_id or f"id-{sequence}", time=TIME, publisher="test")
    return Stored(sequence, draft.subject, draft.payload)


def garbage(sequence: int, subject: str, payload: bytes = b"\xff not json") -> Stored:
    return Stored(sequence, subject, payload)


def folded(*facts: Fact) -> State:
    """The state after these facts."""
    state = State()
    for fact in facts:
        state.apply(stored(state.sequence + 1, fact), CODEC)
    return state
