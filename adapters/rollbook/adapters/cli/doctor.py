"""`rollbook doctor`: looks at everything that a fleet needs, and says what to do about what is not well."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rollbook.adapters.cli.common import ConfigFile, Json, load_what_is_there, run
from rollbook.adapters.cli.exits import Exit
from rollbook.adapters.cli.output import Piece, one_line, out_document
from rollbook.adapters.cli.table import table
from rollbook.adapters.settings import ConfigError

if TYPE_CHECKING:
    from rollbook.adapters.doctor.findings import Examination, Finding

EXAMPLE = """\
Example:

    rollbook doctor
    rollbook doctor --json | jq '.checks[] | select(.state == "failed")'

Exit codes: 0 nothing failed (warnings included), 1 something failed, 64 the
configuration is wrong."""

_STYLES: Final = {"ok": "green", "warning": "yellow", "failed": "bold red", "skipped": "dim"}


def doctor(*, config: ConfigFile = None, json: Json = False) -> Exit:
    """Look at everything that a fleet needs, without changing anything, and name a fix for what is not well.

    Configuration, packages, outboxes, NATS and JetStream, the stream's settings, what these credentials may do, the
    clocks, who leads, workers that are down, the provider, and every proxy. With --json it prints one document:
    healthy, checks.
    """
    from rollbook.adapters import logs
    from rollbook.adapters.doctor.examination import examine
    from rollbook.adapters.doctor.findings import Findings

    logs.configure(environ=os.environ, level="critical")  # what goes wrong is told by the findings
    try:
        found = load_what_is_there(config)
    except ConfigError as exc:
        findings = Findings()
        for problem in exc.problems:
            findings.failed("config", problem, "correct it; `rollbook check` tells when it is right")
        _show(findings.examination(), json=json)
        return Exit.USAGE
    examination = run(examine(found.client, found.config, os.environ))
    _show(examination, json=json)
    return Exit.DONE if examination.healthy else Exit.FAILED


def _show(examination: Examination, *, json: bool) -> None:
    out_document(examination, render(examination.checks), json=json)


def render(checks: Sequence[Finding]) -> Iterator[list[Piece]]:
    """One line for each check, the fix below it, and how many of each there are."""
    rows: list[list[Piece]] = []
    for one in checks:
        rows.append([(one.state, _STYLES[one.state]), one.check, one_line(one.told)])
        if one.fix is not None:
            rows.append(["", "", (f"fix: {one_line(one.fix)}", "bold")])
    yield from table(rows, head=False)
    yield []
    counts = {state: sum(one.state == state for one in checks) for state in _STYLES}
    yield [", ".join(f"{count} {state}" for state, count in counts.items() if count)]
