"""`rollbook status` for people: whatever a worker, operator or router wrote stays inside its own line."""

import msgspec

from rollbook.adapters.cli.status import LONGEST_SHOWN, render
from rollbook.projections.looking.status import FleetStatus, ProxyStatus, RegistrationStatus, Standing, WorkerStatus


def text(taken):
    return ["".join(piece if isinstance(piece, str) else piece[0] for piece in line) for line in render(taken, 0.0)]


def fleet(*, reason="", since="", foreign=(), down=None):
    held = RegistrationStatus(proxy="a", state=Standing.OUT, url=None, gate="serving", reason=reason)
    worker = WorkerStatus(
        name="rollout-0-0",
        pool="rollout",
        cell="0",
        rank=0,
        incarnation=1,
        phase="down",
        since=since,
        address=None,
        suspicion=None,
        registrations=(held,),
    )
    proxy = ProxyStatus(
        name="a",
        kind="sglang",
        reachable=down is None,
        reason=down,
        registered=0,
        wanted=0,
        foreign=foreign,
        version=None,
    )
    return FleetStatus(fleet="f", sequence=1, time="", converged=True, workers=(worker,), proxies=(proxy,), notes=())


def test_text_from_outside_cannot_change_the_terminal():
    evil = "\x1b[2J\nfake line \x9b31m"
    lines = text(fleet(reason=evil, since=evil, foreign=(evil,))) + text(fleet(down=evil))
    assert len(lines) == 2 * len(text(fleet()))
    assert all(line.isprintable() for line in lines)
    assert any(r"\u001b[2J\nfake line" in line for line in lines)


def test_a_reason_of_any_length_is_one_short_line():
    assert max(map(len, text(fleet(reason="x" * 890_000)))) < LONGEST_SHOWN + 100
    assert max(map(len, text(fleet(down="x" * 890_000)))) < LONGEST_SHOWN + 100


def test_an_entry_that_should_not_be_there_is_counted_beside_those_that_should():
    taken = fleet()
    assert text(taken)[-1].split()[:5] == ["a", "sglang", "0", "/", "0"]
    unwanted = RegistrationStatus(proxy="a", state=Standing.UNWANTED, url="http://h:1", gate="serving", reason="down")
    worker = msgspec.structs.replace(taken.workers[0], registrations=(unwanted,))
    lines = text(msgspec.structs.replace(taken, workers=(worker,)))
    assert "registered / wanted" in lines[-2]
    assert "0 / 0, 1 unwanted" in lines[-1]


def test_many_foreign_entries_are_counted():
    lines = text(fleet(foreign=tuple(f"http://h:{port}" for port in range(1, 1001))))
    assert "http://h:1, http://h:2, http://h:3 and 997 more" in lines[-1]


def test_who_waits_for_weights_and_who_lags_behind_is_said_with_the_published_version():
    taken = fleet()
    why = {"gate": "weights_current", "reason": "it holds version 1 of the weights; version 2 is published"}
    waits = RegistrationStatus(proxy="a", state=Standing.PENDING_WEIGHTS, url=None, **why)
    lags = RegistrationStatus(proxy="b", state=Standing.REGISTERED, url="http://h:1", **why)
    worker = msgspec.structs.replace(taken.workers[0], registrations=(waits, lags))
    lines = text(msgspec.structs.replace(taken, workers=(worker,), weights={"rollout": 2}))
    assert "weights published: rollout 2" in lines
    assert any("a: pending_weights (weights_current: it holds version 1" in line for line in lines)
    assert any("b: http://h:1 (weights_current: it holds version 1" in line for line in lines)


def test_half_of_a_pair_is_a_line_of_its_own():
    taken = fleet()
    proxy = msgspec.structs.replace(taken.proxies[0], unpaired={"decode": "prefill"})
    lines = text(msgspec.structs.replace(taken, proxies=(proxy,)))
    assert lines[-1] == (
        "a: half of a pair: nobody of pool prefill could take requests, so those of decode cannot be used; they stay, "
        "and no others are added"
    )
