"""Where `rollbook init` finds Ray, what it makes of it, and what it says."""

import pytest

from rollbook.adapters.cli import init
from rollbook.adapters.cli.find import find_ray
from rollbook.adapters.cli.main import run
from rollbook.adapters.settings import RayProvider, load

RAYLET = "/venv/site-packages/ray/core/src/ray/raylet/raylet"


@pytest.fixture
def processes(tmp_path, monkeypatch):
    """A machine's list of processes, on which nothing runs but this test."""
    folder = tmp_path / "processes"
    monkeypatch.setattr(init, "PROCESSES", folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    add(folder, 1, "pytest", "--gcs-address=10.0.0.9:1")
    return folder


def add(processes, pid, *words):
    (processes / str(pid)).mkdir(parents=True)
    (processes / str(pid) / "cmdline").write_bytes("\0".join([*words, ""]).encode())


def test_no_ray_is_found_where_none_runs(processes):
    assert find_ray({}, processes) == ()
    assert find_ray({}, processes / "no such folder") == ()


def test_every_cluster_with_a_node_here_is_found_once(processes):
    worker = f"--python_worker_command=python worker.py {RAYLET} --gcs-address=10.0.0.8:1"
    add(processes, 2, RAYLET, "--node=1", "--gcs-address=10.0.0.2:6379", worker)
    add(processes, 3, RAYLET, worker, "--gcs-address=10.0.0.1:6379")
    add(processes, 4, RAYLET, "--gcs-address=10.0.0.2:6379")
    add(processes, 5, RAYLET)
    (processes / "6" / "cmdline").mkdir(parents=True)  # cannot be read, as of a process that has ended
    assert find_ray({}, processes) == ("10.0.0.1:6379", "10.0.0.2:6379")


@pytest.mark.parametrize("address", ["", "auto", "local"])
def test_ray_address_comes_first_if_it_is_an_address(processes, address):
    add(processes, 2, RAYLET, "--gcs-address=10.0.0.2:6379")
    assert find_ray({"RAY_ADDRESS": "10.0.0.1:6379"}, processes) == ("10.0.0.1:6379",)
    assert find_ray({"RAY_ADDRESS": address}, processes) == ("10.0.0.2:6379",)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([], "addresses come from Ray, which was not found here: start it, or set RAY_ADDRESS or provider.address"),
        (["h:1"], "addresses come from Ray, found at h:1"),
        (["h:1", "h:2"], "addresses come from Ray, found more than once: choose provider.address from h:1, h:2"),
    ],
)
def test_init_says_what_it_found_and_notes_it_in_the_file(processes, capsys, tmp_path, found, said):
    for number, address in enumerate(found):
        add(processes, 10 + number, RAYLET, f"--gcs-address={address}")
    assert run(["init", "--fleet", "f"], {}) == 0
    assert said in capsys.readouterr().err.splitlines()
    assert all(f'"{address}"' in (tmp_path / "rollbook.toml").read_text() for address in found)
    assert isinstance(load(None, environ={}, cwd=tmp_path).settings.provider, RayProvider)


def test_an_address_can_say_nothing_but_itself_in_the_file(processes, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", 'h:1"\nnamespace = "other')
    assert run(["init", "--fleet", "f"], {}) == 0
    assert load(None, environ={}, cwd=tmp_path).settings.provider == RayProvider()


def test_who_fixes_addresses_is_told_of_no_ray(processes, capsys):
    add(processes, 2, RAYLET, "--gcs-address=h:1")
    assert run(["init", "--fleet", "f", "--worker", "rollout-0-0=h:80"], {}) == 0
    err = capsys.readouterr().err
    assert "addresses come from the file" in err
    assert "Ray" not in err
