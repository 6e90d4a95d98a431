"""The demo's smaller parts: what it says when something is missing or asked wrongly, and how its report reads."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import msgspec
import pytest

from rollbook.adapters.cli.main import run
from rollbook.adapters.demo.cluster import require_ray
from rollbook.adapters.demo.errors import MissingExtra
from rollbook.adapters.demo.promise import Check
from rollbook.adapters.demo.report import DisturbanceReport, FallReport, KillReport, Report, Requests, RestartReport
from rollbook.adapters.demo.router import find_program
from rollbook.adapters.demo.text import render

REPORT = Report(
    seed=7,
    seconds=31.25,
    workers=("rollout-0-0", "rollout-1-0"),
    passed=True,
    kills=(
        KillReport(
            worker="rollout-0-0",
            incarnation=1,
            how="killed",
            at=3.24,
            same_url=True,
            was_registered=True,
            down=0.0123,
            deregistered=0.0456,
            registered=1.5,
            served=1.625,
        ),
        KillReport(
            worker="rollout-1-0",
            incarnation=12,
            how="node died",
            at=20.0,
            same_url=None,
            was_registered=False,
            down=0.01,
            deregistered=None,
            registered=None,
            served=None,
        ),
    ),
    restarts=(RestartReport(at=15.0, answered=2.0, served=2.5),),
    disturbances=(),
    falls=(),
    requests=Requests(
        sent=700,
        per_second=23.3,
        failed=9,
        failures={"x": 6, "y": 3},
        wrong=0,
        late=2,
        unregistered=0,
        early=1,
        foreign=0,
    ),
    registered={"rollout-1-0": 13, "rollout-0-0": 2},
    facts=80,
    sequence=79,
    checks=(Check(name="all is well", guards="I1", looked_at=3, held=True, broken=()),),
)


def text_of(report: Report) -> list[str]:
    return ["".join(piece if isinstance(piece, str) else piece[0] for piece in line) for line in render(report)]


def test_the_report_reads_well() -> None:
    assert text_of(REPORT) == [
        "2 kills among 2 workers in 31.2 s, seed 7. Seconds from each death until the worker was:",
        "",
        "      at  how           worker         life  url        down  deregistered  registered again  served again",
        "   3.2 s  killed        rollout-0-0       1  same      0.012         0.046             1.500         1.625",
        "  20.0 s  node died     rollout-1-0      12  -         0.010    was not in             never         never",
        "",
        "requests  700 sent (23.3/s), 9 failed",
        "          6 failed: x",
        "          3 failed: y",
        "          0 served by a wrong or dead incarnation",
        "          2 served by a life that stood still, was given up, and was still listed",
        "          1 served by a new incarnation before it was registered",
        "router    killed at 15.0 s; after its death it answered in 2.000 s, with an empty list, and served in 2.500 s",
        "          lists at the end: rollout-0-0 2, rollout-1-0 13",
        "log       80 facts; the replay was compared with the live state at 79",
        "",
        "held    I1  all is well (3)",
        "",
        "Everything held.",
    ]


def test_what_broke_is_shown_under_its_promise() -> None:
    broken = Check(name="all is well", guards="I1", looked_at=3, held=False, broken=("this", "and 2 more"))
    report = msgspec.structs.replace(REPORT, passed=False, checks=(*REPORT.checks, broken))
    assert text_of(report)[-5:] == [
        "BROKEN  I1  all is well (3)",
        "            this",
        "            and 2 more",
        "",
        "1 of 2 promises were broken.",
    ]


def test_what_was_done_to_other_parts_is_shown_with_its_cost() -> None:
    leader = DisturbanceReport(
        what="leader killed", whom="controller-a", at=11.5, back=4.7, served=0.1, failed=3, fact=None
    )
    fall = FallReport(program="monitor", at=12.0, code=1, said="rollbook: no NATS")
    lines = text_of(msgspec.structs.replace(REPORT, disturbances=(leader,), falls=(fall,)))
    assert lines[5:11] == [
        "",
        "1 other faults. Seconds from each until it was back, a request was served, a fact was stored; and how many",
        "requests failed while it was not back:",
        "",
        "      at  what              which              back after  request served  fact stored  failed",
        "  11.5 s  leader killed     controller-a            4.700           0.100            -       3",
    ]
    told = "programs  monitor ended by itself at 12.0 s with code 1, and was started again: rollbook: no NATS"
    assert told in lines


def test_a_missing_router_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingExtra, match=r'^sglang-router is not installed.*pip install "rollbook\[demo\]"$'):
        find_program()


def test_a_missing_ray_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r'^ray is not installed.*pip install "rollbook\[demo\]"$'):
        require_ray()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workers", "0"], "--workers is 0; give a number from 1 to 32"),
        (["--workers", "33"], "--workers is 33; give a number from 1 to 32"),
        (["--seconds", "1"], "--seconds is 1; give a number from 5 to 3600"),
        (["--seconds", "nan"], "--seconds is nan; give a number from 5 to 3600"),
        (["--kills", "-1"], "--kills is -1; give a number from 0 to one for each second, 30"),
        (["--chaos", "--seconds", "19"], "--seconds is 19; give a number from 20 to 3600"),
        (["--chaos", "--seconds", "nan"], "--seconds is nan; give a number from 20 to 3600"),
        (["--kills", "31"], "--kills is 31; give a number from 0 to one for each second, 30"),
    ],
)
def test_wrong_numbers_are_refused_before_anything_starts(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["demo", *arguments], {}) == 64
    assert capsys.readouterr().err == f"rollbook: {said}\n"


def test_a_folder_of_another_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "something").touch()
    assert run(["demo", "--directory", str(tmp_path)], {}) == 64
    assert "is not empty" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert run(["demo", "--directory", str(tmp_path / "file")], {}) == 64
    assert "cannot be used" in capsys.readouterr().err
