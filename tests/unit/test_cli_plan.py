"""`rollbook plan --out`: the file holds a whole plan, the new one or the older one."""

import os
import resource
from pathlib import Path

import pytest

from rollbook.adapters.cli.exits import UsageError
from rollbook.adapters.cli.plan import write_plan
from rollbook.projections.looking.preview import Preview
from rollbook.projections.looking.saved import load_saved

PREVIEW = Preview(fleet="math-rl", sequence=1, time="2026-01-01T00:00:00Z", lines=())


@pytest.fixture
def no_room():
    """No file may grow, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def kept(tmp_path):
    file = tmp_path / "next.plan"
    write_plan(PREVIEW, "router-a", file)
    return file


def test_a_plan_is_written_over_an_older_one(kept):
    write_plan(PREVIEW, None, kept)
    assert load_saved(kept.read_bytes(), "math-rl").proxy is None
    assert [one.name for one in kept.parent.iterdir()] == ["next.plan"]


def test_where_there_is_no_room_the_older_plan_stays(kept, no_room):
    with pytest.raises(UsageError, match=r"next\.plan cannot be written: File too large"):
        write_plan(PREVIEW, None, kept)
    assert load_saved(kept.read_bytes(), "math-rl").proxy == "router-a"
    assert [one.name for one in kept.parent.iterdir()] == ["next.plan"]


def test_a_plan_can_be_written_where_no_file_can_be_put_beside():
    device = Path(os.devnull)
    write_plan(PREVIEW, None, device)
    assert device.is_char_device()
