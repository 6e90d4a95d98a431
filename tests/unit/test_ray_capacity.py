"""Why a cell has no place, told as what it asked for and what there is."""

import pytest

from rollbook.adapters.ray.capacity import needed, shortage
from rollbook.adapters.ray.spec import CommandWorkerSpec

GIB = 1 << 30
CPUS, GPUS = {"CPU": 64.0, "memory": 32.0 * GIB}, {"CPU": 8.0, "GPU": 4.0, "memory": 16.0 * GIB}


def cell(*options, placement=None):
    return [
        CommandWorkerSpec(name=f"rollout-0-{rank}", command="x", placement=placement, ray_options=one)
        for rank, one in enumerate(options)
    ]


@pytest.mark.parametrize(
    ("options", "placement", "told"),
    [
        ([{}], None, "CPU 1; the cluster has that; free now: CPU 0.5"),
        (
            [{"num_cpus": 10, "num_gpus": 4}],
            None,
            "no node has CPU 10 and GPU 4: the closest of 2 has CPU 8 and GPU 4",
        ),
        ([{"num_gpus": 3}] * 2, "PACK", "2 x (CPU 1 and GPU 3) (PACK); all 2 nodes together have CPU 72 and GPU 4"),
        ([{"num_gpus": 3}] * 2, None, "2 x (CPU 1 and GPU 3); all 2 nodes together have CPU 72 and GPU 4"),
        (
            [{"num_gpus": 1}, {"num_cpus": 8}],
            "STRICT_PACK",
            "CPU 1 and GPU 1 + CPU 8 (STRICT_PACK); no node has CPU 9 and GPU 1: the closest of 2 has CPU 8 and GPU 4",
        ),
        ([{}] * 3, "STRICT_SPREAD", "3 x (CPU 1) (STRICT_SPREAD); that needs 3 nodes at least, and there are 2"),
        (
            [{"memory": 40 * GIB}],
            None,
            "no node has CPU 1 and memory 40 GiB: the closest of 2 has CPU 64 and memory 32 GiB",
        ),
        (
            [{"resources": {"slice": 1}}],
            None,
            "no node has CPU 1 and slice 1: the closest of 2 has CPU 64 and slice 0",
        ),
    ],
)
def test_what_is_missing(options, placement, told):
    text = shortage(cell(*options, placement=placement), [CPUS, GPUS], {"CPU": 0.5})
    assert text.startswith("Ray was asked for ")
    assert told in text


def test_who_asks_for_nothing_lacks_nothing_and_without_nodes_there_is_nothing():
    nothing = cell({"num_cpus": 0})
    assert shortage(nothing, [CPUS], {}) == needed(nothing[0]) == ""
    assert shortage(cell({}), [], {}) == "Ray was asked for CPU 1; that needs 1 nodes at least, and there are 0"
