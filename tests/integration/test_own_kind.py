"""A package with a kind of its own, as docs/proxies/own-kind.md has it: installed, found, checked and driven."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.small_routers import Abacus, small_router

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own-kind"

CONFIG = """
fleet = "math-rl"

[provider]
kind = "static"

[pools.rollout]

[[proxies]]
name = "a"
kind = "{kind}"
admin_url = "{url}"
pools = ["rollout"]
options = {{ {options} }}
"""

ROUND = """
import asyncio, os, sys
from pathlib import Path
from rollbook.adapters.proxies.opening import open_proxies
from rollbook.adapters.settings import load
from rollbook.projections.ports import Target

async def main():
    settings = load(None, environ=os.environ, cwd=Path.cwd()).settings
    async with open_proxies(settings, environ=os.environ, base=Path.cwd()) as proxies:
        print(await proxies["a"].add(Target(worker="rollout-3-0", incarnation=8, url="http://10.0.0.1:8000")))
        (entry,) = (await proxies["a"].list()).entries
        print(entry.url, entry.fleet, entry.worker, entry.incarnation)
        print(await proxies["a"].remove(entry), (await proxies["a"].list()).entries)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Where pip put the example, with what is installed here to build it and nothing from elsewhere."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    here = ["--no-deps", "--no-build-isolation", f"--target={folder}", str(EXAMPLE)]
    done = subprocess.run([*pip, *here], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return folder


def run(folder: Path, site: Path | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = [*([str(site)] if site else []), *(entry for entry in sys.path if entry)]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=60
    )


def check(folder: Path, site: Path | None, *, kind: str = "abacus", options: str = "beads = 3"):
    (folder / "rollbook.toml").write_text(CONFIG.format(kind=kind, url="http://127.0.0.1:1", options=options))
    done = run(folder, site, "-m", "rollbook.adapters.cli.main", "check", "--json")
    said = json.loads(done.stdout)
    return done.returncode, said["problems"]


def test_the_configuration_knows_an_installed_kind_and_its_options(tmp_path, installed):
    assert check(tmp_path, installed) == (0, [])
    assert check(tmp_path, installed, options="bead = 3") == (
        64,
        ["rollbook.toml: proxies[0].options.bead: unknown key; did you mean 'beads'?"],
    )
    assert check(tmp_path, installed, options="beads = 0") == (
        64,
        ["rollbook.toml: proxies[0].options: beads is 0; a column needs at least one"],
    )
    assert check(tmp_path, installed, kind="abakus")[1] == [
        "rollbook.toml: proxies[0].kind: there is no kind 'abakus'; did you mean 'abacus'?"
    ]


def test_init_writes_it_with_its_options_as_what_they_are(tmp_path, installed):
    wanted = ["init", "--fleet", "f", "--provider", "static", "--proxy", "a=abacus@http://h:1,beads=3"]
    assert run(tmp_path, installed, "-m", "rollbook.adapters.cli.main", *wanted).returncode == 0
    assert "[proxies.options]\nbeads = 3\n" in (tmp_path / "rollbook.toml").read_text()


def test_without_the_package_there_is_no_such_kind(tmp_path):
    code, (problem,) = check(tmp_path, None)
    assert code == 64
    assert "there is no kind 'abacus'" in problem


async def test_an_installed_kind_is_driven_as_configured(tmp_path, installed):
    async with small_router(Abacus) as abacus:
        (tmp_path / "rollbook.toml").write_text(CONFIG.format(kind="abacus", url=abacus.url, options="beads = 3"))
        done = await asyncio.to_thread(run, tmp_path, installed, "-c", ROUND)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == ["Done()", "http://10.0.0.1:8000 math-rl rollout-3-0 8", "Done() ()"]
        assert [body for method, _, body in abacus.requests if method == "PUT"] == [
            {"url": "http://10.0.0.1:8000", "beads": 3}
        ]
