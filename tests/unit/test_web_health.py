"""When a controller counts as ready, case by case."""

from types import SimpleNamespace

import pytest

from rollbook.adapters.web.health import BEHIND_SECONDS, Judge
from rollbook.projections.ports import LogState


def controller(*, folded=None, epoch=None, led_by=None):
    projector = None if folded is None else SimpleNamespace(state=SimpleNamespace(sequence=folded))
    leading = None if epoch is None else SimpleNamespace(epoch=epoch)
    return SimpleNamespace(projector=projector, leading=leading, led_by=led_by)


def ends(last):
    return LogState("log", 1, last)


def test_a_leader_at_the_end_of_the_log_is_ready():
    found = Judge(controller(folded=7, epoch=3)).judge(ends(7), 0.0)
    assert (found.ready, found.role, found.epoch, found.sequence) == (True, "leading", 3, 7)


def test_a_warm_standby_is_ready_and_says_who_leads():
    found = Judge(controller(folded=7, led_by="one")).judge(ends(7), 0.0)
    assert (found.ready, found.role, found.led_by) == (True, "standing by", "one")


def test_an_empty_log_is_caught_up():
    assert Judge(controller(folded=0)).judge(ends(0), 0.0).ready


@pytest.mark.parametrize(
    ("built", "last", "word"),
    [
        (controller(), ends(7), "snapshot is being restored"),
        (controller(folded=3), ends(7), "the fold is at 3, the log ends at 7"),
        (controller(folded=7, epoch=1), None, "the log does not answer"),
    ],
)
def test_why_it_is_not_ready(built, last, word):
    found = Judge(built).judge(last, 100.0)
    assert not found.ready
    assert any(word in reason for reason in found.reasons)


def test_a_standby_whose_log_goes_away_is_still_one():
    judge = Judge(controller(folded=7))
    assert judge.judge(ends(7), 0.0).role == "standing by"
    found = judge.judge(None, 1.0)
    assert (found.ready, found.role) == (False, "standing by")
    assert Judge(controller(folded=3)).judge(ends(7), 0.0).role == "starting"


def test_facts_that_keep_coming_make_nobody_unready():
    built = controller(folded=10)
    judge = Judge(built)
    assert judge.judge(ends(10), 0.0).ready
    for moment in range(1, 100):
        built.projector.state.sequence = 10 * moment
        assert judge.judge(ends(10 * moment + 9), moment * 1.0).ready


def test_a_fold_that_stands_still_does():
    built = controller(folded=10)
    judge = Judge(built)
    assert judge.judge(ends(10), 0.0).ready
    assert judge.judge(ends(12), 1.0).ready
    assert judge.judge(ends(13), 0.9 + BEHIND_SECONDS).ready
    assert not judge.judge(ends(14), 1.0 + BEHIND_SECONDS).ready
    built.projector.state.sequence = 14
    assert judge.judge(ends(14), 2.0 + BEHIND_SECONDS).ready
