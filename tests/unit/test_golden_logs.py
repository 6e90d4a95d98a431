"""[I5] Recorded logs fold to the digests that were written down: in every process, and in every later version."""

import json
import os
import subprocess
import sys

import pytest
from golden import logs

from rollbook.adapters.archive.reading import ArchiveFile
from rollbook.projections.state.fold import SCHEMA

HOW = (
    "this log folds to another state than before. If that is meant, raise SCHEMA in projections/state/fold.py and run "
    "`python tests/golden/logs.py`; a fact's changed meaning needs a new version and an upcaster, too (docs/events.md)"
)


@pytest.mark.parametrize("name", logs.NAMES)
def test_a_recorded_log_folds_to_what_was_written_down(name):
    assert str(SCHEMA) in logs.known(), "SCHEMA was raised: run `python tests/golden/logs.py`"
    assert logs.digests_of(name) == logs.known()[str(SCHEMA)][name], HOW


@pytest.mark.parametrize("name", logs.NAMES)
def test_the_logs_are_whole_and_say_the_same_themselves(name):
    file = ArchiveFile.open(logs.path_of(name))
    end = file.verify()
    assert end.digest == logs.known()[str(end.schema)][name][str(end.last)]


@pytest.mark.parametrize("seed", ["0", "1", "4711"])
def test_the_order_of_hashes_says_nothing(seed):
    path = os.pathsep.join(part for part in sys.path if part)
    ended = subprocess.run(
        [sys.executable, logs.__file__, "--print"],
        env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert json.loads(ended.stdout) == logs.known()[str(SCHEMA)]
