"""Whole logs that were recorded once, in `logs/`, and the digests of their folds.

They are the promise that a log means the same for ever: `demo` is one of `rollbook demo`, `simulation` one of the
simulation (seed 12, with every weather that there is), `strange` was made by hand of random facts, one of every kind,
repetitions, types that nobody knows and messages that nobody can read. Their bytes never change.

A digest belongs to a version of the fold, `SCHEMA`. Where a change makes a log fold to another state, the tests say so:
then either the change is wrong, or `SCHEMA` is raised (so that no snapshot of the old fold is taken for one of the new)
and `python tests/golden/logs.py` writes down the new version's digests beside the old ones. It changes none that is
there. Where a fact's meaning changed, its old version is lifted by an upcaster (docs/events.md), and these logs are
where it proves itself.
"""

import json
import sys
from pathlib import Path

from rollbook.adapters.archive.reading import ArchiveFile
from rollbook.events import Codec
from rollbook.projections.state.fold import SCHEMA, State

FOLDER = Path(__file__).parent / "logs"
DIGESTS = FOLDER / "digests.json"
NAMES = ("demo", "simulation", "strange")
PARTS = 4
"""So many times on the way the digest is taken, so that a change is found near to where it begins."""


def path_of(name: str) -> Path:
    """Where a log is kept: an archive, as `rollbook export` writes it."""
    return FOLDER / f"{name}.jsonl.zst"


def digests_of(name: str) -> dict[str, str]:
    """Sequence → digest of the fold there."""
    file = ArchiveFile.open(path_of(name))
    codec, state, found = Codec(file.head.fleet), State(), {}
    looked_at = {file.head.last * part // PARTS for part in range(1, PARTS + 1)}
    for line in file.messages():
        state.apply(line.stored, codec)
        if state.sequence in looked_at:
            found[str(state.sequence)] = state.digest()
    return found


def known() -> dict[str, dict[str, dict[str, str]]]:
    """Schema → name → digests."""
    return json.loads(DIGESTS.read_text()) if DIGESTS.exists() else {}


def main(*asked: str) -> None:
    """Write down what is missing; `--print` prints the present fold's digests instead."""
    found = {name: digests_of(name) for name in NAMES}
    if asked == ("--print",):
        sys.stdout.write(json.dumps(found))
        return
    kept = known()
    kept.setdefault(str(SCHEMA), {})
    kept[str(SCHEMA)] = found | kept[str(SCHEMA)]
    DIGESTS.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
