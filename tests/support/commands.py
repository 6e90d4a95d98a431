"""The command line in this process, and a configuration that is good."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from rollbook.adapters.cli.main import run

GOOD = """
fleet = "math-rl"
[provider]
kind = "ray"
[pools.rollout]
[[proxies]]
name = "router-a"
kind = "sglang"
admin_url = "http://127.0.0.1:30000"
pools = ["rollout"]
"""


def call(
    capsys: pytest.CaptureFixture[str], *arguments: str, environ: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of this command alone."""
    capsys.readouterr()
    code = run(list(arguments), environ or {})
    streams = capsys.readouterr()
    return code, streams.out, streams.err
