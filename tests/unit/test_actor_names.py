"""Workers' names and their actors' names, both ways."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.adapters.ray.naming import ActorNames, actor_pattern


@pytest.mark.parametrize(
    ("template", "pool", "worker", "actor"),
    [
        ("engine-{worker}", None, "rollout-3-0", "engine-rollout-3-0"),
        ("{worker}", None, "any_name", "any_name"),
        ("sglang_server_{cell}_{rank}", "rollout", "rollout-3-1", "sglang_server_3_1"),
        ("{pool}.{cell}", None, "rollout-3-0", "rollout.3"),
        ("a+{cell}", "rollout", "rollout-3-0", "a+3"),
    ],
)
def test_the_actor_of_a_worker(template, pool, worker, actor):
    names = ActorNames(template, pool)
    assert names.actor(worker) == actor
    assert names.worker(actor) == worker


@pytest.mark.parametrize(
    ("template", "pool", "worker"),
    [
        ("server_{cell}_{rank}", "rollout", "reward-3-0"),
        ("server_{cell}_{rank}", "rollout", "any_name"),
        ("server_{cell}", "rollout", "rollout-3-1"),
        ("server_{cell}", "rollout", "rollout-03-0"),
        ("{worker}", None, "a.b"),
        ("{worker}", None, ""),
    ],
)
def test_a_worker_that_it_cannot_name_has_no_actor(template, pool, worker):
    assert ActorNames(template, pool).actor(worker) is None


@pytest.mark.parametrize("actor", ["engine-", "other-rollout-3-0", "engine-a.b", "engine-a\n", "Engine-a"])
def test_an_actor_of_somebody_else_is_no_worker(actor):
    assert ActorNames("engine-{worker}").worker(actor) is None


@pytest.mark.parametrize(
    "template",
    [
        "engine",
        "{worker}{worker}",
        "{",
        "{worker!r}",
        "{worker:>9}",
        "{0}",
        "{}",
        "{rank}",
        "{pool}",
        "{worker}-{rank}",
    ],
)
def test_an_unusable_template_says_how_to_write_it(template):
    with pytest.raises(ValueError, match=re.escape("write it with {worker}, as in engine-{worker}")):
        actor_pattern(template)


NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True) | st.from_regex(r"p-[0-9]{1,2}-[0-9]", fullmatch=True)
TEMPLATES = st.sampled_from(
    ["x{worker}", "{worker}-y", "{pool}{cell}{rank}", "{cell}-{rank}", "{rank}{cell}", "{cell}"]
)


@given(TEMPLATES, st.lists(NAMES, max_size=8))
def test_no_two_workers_share_an_actor(template, workers):
    names = ActorNames(template, "p")
    actors = {worker: actor for worker in workers if (actor := names.actor(worker)) is not None}
    assert len(set(actors.values())) == len(actors)
    assert all(names.worker(actor) == worker for worker, actor in actors.items())
