"""Three source roots make one import package, in a checkout and in a wheel."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("events", "projections", "adapters")


def shipped_files() -> set[str]:
    """Every file of the package, as it is named inside a wheel."""
    return {
        path.relative_to(ROOT / layer).as_posix()
        for layer in LAYERS
        for path in (ROOT / layer / "rollbook").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_no_root_hides_the_others():
    strays = [str(path.relative_to(ROOT)) for path in ROOT.glob("*/rollbook/__init__.py")]
    assert not strays, f"a regular package 'rollbook' hides the other roots' parts of it: delete {strays}"


def test_each_root_holds_its_layer_only():
    assert {layer: sorted(p.name for p in (ROOT / layer / "rollbook").iterdir()) for layer in LAYERS} == {
        layer: [layer] for layer in LAYERS
    }


@pytest.mark.parametrize("first", LAYERS)
def test_layers_come_from_their_roots_whatever_the_order(first):
    roots = [str(ROOT / layer) for layer in sorted(LAYERS, key=lambda layer: layer != first)]
    program = (
        "import importlib.util, json, sys; sys.path[:0] = json.loads(sys.argv[1]); "
        "print(json.dumps({n: importlib.util.find_spec('rollbook.' + n).origin for n in sys.argv[2:]}))"
    )
    # -I and -S: no site-packages, so an installed rollbook cannot help.
    found = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, json.dumps(roots), *LAYERS],
        check=True,
        capture_output=True,
        text=True,
    )
    assert json.loads(found.stdout) == {
        layer: str(ROOT / layer / "rollbook" / layer / "__init__.py") for layer in LAYERS
    }


def test_the_wheel_holds_the_whole_package_and_nothing_else(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    metadata = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    assert names - metadata == shipped_files()
    assert {f"rollbook/{layer}/py.typed" for layer in LAYERS} <= names
    assert any(name.endswith("licenses/LICENSE") for name in metadata)
