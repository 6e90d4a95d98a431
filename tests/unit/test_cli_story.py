"""A story as lines: what is slow is marked, and nothing that somebody wrote moves a terminal's cursor."""

import pytest
from support.core import CODEC, POLICY
from support.past import told

from rollbook.adapters.cli.diff import render as render_diff
from rollbook.adapters.cli.status_at import render as render_then
from rollbook.adapters.cli.story import render, seconds
from rollbook.events import (
    ProxyReachable,
    ProxyUnreachable,
    Registered,
    Registering,
    RegistrationFailed,
    WorkerCordoned,
    WorkerDown,
    WorkerSuspected,
    WorkerUp,
)
from rollbook.projections.history.difference import between
from rollbook.projections.history.moments import state_at
from rollbook.projections.history.story import Asked, explain
from rollbook.projections.history.view import view

W = "rollout-0-0"
EVIL = "\x1b[2J\nfake\r"


def text(lines):
    return ["".join(piece if isinstance(piece, str) else piece[0] for piece in line) for line in lines]


async def a_past(words):
    at = {"proxy": "router", "worker": W, "incarnation": 1, "url": "http://h:1"}
    past = await told([WorkerUp(worker=W, incarnation=1), ProxyReachable(proxy="router", version=words)])
    await past.say(Registering(**at, cause=1, reason=words))
    past.clock.time += 40
    await past.say(RegistrationFailed(**at, cause=3, action="register", reason=words))
    await past.say(Registering(**at, cause=1), Registered(**at, cause=5))
    await past.say(
        WorkerSuspected(worker=W, incarnation=1, reason=words), ProxyUnreachable(proxy="router", reason=words)
    )
    await past.say(WorkerCordoned(worker=W, by=words, why=words), by=words)
    await past.say(WorkerDown(worker=W, incarnation=1, evidence="timeout", reason=words))
    return past


async def story(past):
    return await explain(past, CODEC, Asked(worker=W, to=(await past.ends())[1], policy=POLICY))


async def test_the_slowest_step_is_marked_where_it_is_told_and_in_the_table():
    lines = text(render(await story(await a_past("slow"))))
    marked = [line.strip() for line in lines if "slowest" in line]
    assert marked[0] == "=> failed 41.00s after #3  <- slowest step"
    assert marked[1].startswith("router ")
    assert len(marked) == 2


async def test_the_end_comes_first():
    lines = text(render(await story(await a_past("no answer"))))
    assert lines[0].startswith("rollout-0-0  life 1  down")
    assert lines[1].startswith("  at router: kept out by serving: down (timeout: no answer); registered at http://h:1")


@pytest.mark.parametrize("how", ["explain", "diff", "then"])
async def test_text_from_outside_cannot_change_the_terminal(how):
    past = await a_past(EVIL)
    if how == "explain":
        lines = text(render(await story(past)))
    elif how == "diff":
        lines = text(render_diff(await between(past, CODEC, 0, 10)))
    else:
        lines = text(render_then(view("f", await state_at(past, CODEC, 10), "")))
    assert any("fake" in line for line in lines)
    assert all(line.isprintable() for line in lines), [line for line in lines if not line.isprintable()]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0.0, "0ms"), (0.0042, "4ms"), (1.25, "1.25s"), (192, "3m12s"), (18_180, "5h03m"), (187_200, "2d04h")],
)
def test_seconds_for_people(value, shown):
    assert seconds(value) == shown
