"""The picture of a run: bars, marks and counts as the facts say, in a file that needs nothing else."""

import importlib.util
import itertools
import xml.etree.ElementTree as ET

import pytest
from support.core import CODEC
from support.histories import a_history
from support.past import BEGAN, Told, told

from rollbook.adapters.drawing import COLOURS, CannotDraw, draw
from rollbook.events import (
    Deregistered,
    Deregistering,
    DriftFound,
    LeadershipTaken,
    ProxyReachable,
    ProxyUnreachable,
    Registered,
    Registering,
    WorkerCordoned,
    WorkerDown,
    WorkerForgotten,
    WorkerResumed,
    WorkerRetired,
    WorkerStarted,
    WorkerSuspended,
    WorkerUncordoned,
    WorkerUp,
)
from rollbook.projections.history.timeline import LABELS, timeline

W, V = "rollout-10-0", "rollout-9-0"
AT = {"proxy": "a", "worker": W, "url": "http://h:1"}
needs_matplotlib = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="the `timeline` extra")


def bars(row):
    """(label, first second, last second), counted from the first fact."""
    return [(span.label, span.begin - BEGAN, span.end - BEGAN) for span in row.spans]


async def drawn(past, first=1):
    return await timeline(past, CODEC, first, (await past.ends())[1])


async def test_a_bar_for_each_phase_and_a_mark_for_each_new_life():
    past = await told([WorkerStarted(worker=W, incarnation=1), WorkerUp(worker=W, incarnation=1)])
    await past.say(WorkerDown(worker=W, incarnation=1, evidence="exited"), WorkerUp(worker=W, incarnation=2))
    await past.say(WorkerRetired(worker=W, incarnation=2), WorkerUp(worker=V, incarnation=1))
    await past.say(WorkerForgotten(worker=V, by="ann", why="x"), WorkerUp(worker="free", incarnation=1))
    picture = await drawn(past)
    rows = {row.name: row for row in picture.workers}
    assert bars(rows[W]) == [("starting", 0, 1), ("serving", 1, 2), ("down", 2, 3), ("serving", 3, 4)]
    assert [(mark.kind, mark.at - BEGAN) for mark in rows[W].marks] == [("restart", 3)]
    assert bars(rows[V]) == [("serving", 5, 6)]
    assert (picture.begin, picture.end) == (BEGAN, BEGAN + 7)
    assert [row.name for row in picture.workers] == ["free", V, W], "cells in the order of their numbers"


async def test_sleeping_and_cordoned_workers_are_told_from_serving_ones():
    past = await told([WorkerUp(worker=W, incarnation=1), WorkerSuspended(worker=W, incarnation=1)])
    await past.say(WorkerResumed(worker=W, incarnation=1), WorkerCordoned(worker=W, by="ann", why="x"))
    await past.say(WorkerUncordoned(worker=W, by="ann", why="y"), WorkerUp(worker=V, incarnation=1))
    row = next(row for row in (await drawn(past)).workers if row.name == W)
    assert bars(row) == [
        ("serving", 0, 1),
        ("suspended", 1, 2),
        ("serving", 2, 3),
        ("cordoned", 3, 4),
        ("serving", 4, 5),
    ]


async def test_a_proxy_has_a_count_its_absences_and_its_marks():
    past = await told([LeadershipTaken(proxy="a", owner="x", epoch=1), WorkerUp(worker=W, incarnation=1)])
    await past.say(Registering(**AT, incarnation=1), Registered(**AT, incarnation=1, cause=3))  # 3, 4
    await past.say(ProxyUnreachable(proxy="a", reason="x"), ProxyReachable(proxy="a"))  # 5, 6
    await past.say(DriftFound(proxy="a", missing=(W,)), DriftFound(proxy="a", foreign=("http://x:1",)))  # 7, 8
    await past.say(Deregistering(**AT, incarnation=1), Deregistered(**AT, incarnation=1, cause=9))  # 9, 10
    await past.say(ProxyUnreachable(proxy="a", reason="x"), WorkerUp(worker=V, incarnation=1))  # 11, 12
    (proxy,) = (await drawn(past)).proxies
    counts = [(moment - BEGAN, count) for moment, count in proxy.counts]
    assert counts == [(0, 0), (3, 1), (8, 0)]
    assert [(begin - BEGAN, end - BEGAN) for begin, end in proxy.unreachable] == [(4, 5), (10, 11)]
    assert [(mark.kind, mark.at - BEGAN) for mark in proxy.marks] == [("takeover", 0), ("drift", 6)]


async def test_a_picture_of_a_part_begins_as_things_stood():
    past = await told([WorkerUp(worker=W, incarnation=1), Registering(**AT, incarnation=1)])
    await past.say(Registered(**AT, incarnation=1, cause=2), WorkerUp(worker=V, incarnation=1))
    await past.say(WorkerUp(worker=V, incarnation=2))
    picture = await drawn(past, 4)
    assert {row.name: bars(row) for row in picture.workers} == {W: [("serving", 3, 4)], V: [("serving", 3, 4)]}
    assert picture.proxies[0].counts == ((BEGAN + 3, 1),)


@pytest.mark.parametrize("seed", range(4))
async def test_bars_never_overlap_and_every_label_has_a_colour(seed):
    picture = await drawn(await told(a_history(seed)))
    assert set(COLOURS) == set(LABELS)
    for row in picture.workers:
        ends = [(span.begin, span.end) for span in row.spans]
        assert all(begin < end for begin, end in ends)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(ends))
        assert {span.label for span in row.spans} <= set(LABELS)


@needs_matplotlib
@pytest.mark.parametrize("suffix", ["png", "svg", "html"])
@pytest.mark.parametrize("workers", [4, 400])
async def test_a_file_that_needs_nothing_else(tmp_path, suffix, workers):
    past = Told()
    for number in range(workers):
        await past.say(WorkerUp(worker=f"rollout-{number}-0", incarnation=1))
    await past.say(*(fact for fact in a_history(1) if getattr(fact, "proxy", None)))
    path = tmp_path / f"run.{suffix}"
    draw(await drawn(past), path)
    content = path.read_bytes()
    if suffix == "png":
        assert content.startswith(b"\x89PNG")
        return
    text = content.decode()
    assert f"rollout-{workers - 1}-0" in text, "text stays text, and can be searched"
    assert not any(word in text for word in ("<script", "<link", "<img", "<iframe", "@import"))
    svg = ET.fromstring(text[text.index("<svg") : text.index("</svg>") + len("</svg>")])  # noqa: S314 - our own
    assert svg.tag.endswith("svg")


@needs_matplotlib
async def test_what_cannot_be_drawn_is_said(tmp_path):
    past = await told([WorkerUp(worker=W, incarnation=1)])
    with pytest.raises(CannotDraw, match=r"\.html, \.svg, \.png"):
        draw(await drawn(past), tmp_path / "run.pdf")
    with pytest.raises(CannotDraw, match="cannot be written"):
        draw(await drawn(past), tmp_path / "nowhere" / "run.png")
    with pytest.raises(CannotDraw, match="say nothing"):
        draw(await drawn(Told()), tmp_path / "run.png")
