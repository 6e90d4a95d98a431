"""Older sglang-routers, each installed once beside the tests' cache: their wheels are still to be had."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.routers import IN_CI, SglangRouter

FLAGS = ("--worker-startup-timeout-secs=2", "--worker-startup-check-interval=1")


class OldSglangRouter(SglangRouter):
    """`python -m sglang_router.launch_router` of the version that `folder` is named after."""

    def __init__(self, directory: Path, folder: Path) -> None:
        super().__init__(directory, FLAGS)
        self._folder = folder

    @property
    def api(self) -> str:
        """`0.1` or `0.2`."""
        return self._folder.name.rpartition(".")[0]

    def command(self) -> list[str]:
        launch = ["env", f"PYTHONPATH={self._folder}", sys.executable, "-m", "sglang_router.launch_router"]
        return [*launch, *self.flags("warning" if self.api == "0.1" else "warn")]


def need_old_sglang(cache: pytest.Cache, version: str) -> Path:
    """The folder with that version. Skips, and says why, where it cannot be had; not in CI."""
    shelf = cache.mkdir("sglang-router")
    folder = shelf / version
    if folder.is_dir():
        return folder
    with tempfile.TemporaryDirectory(dir=shelf) as fresh:
        wanted = [f"--target={fresh}/it", "--no-deps", "--only-binary=:all:", f"sglang-router=={version}"]
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted]
        done = subprocess.run(pip, capture_output=True, text=True, check=False, timeout=100)
        if done.returncode != 0:
            reason = f"sglang-router {version} cannot be had here: {done.stderr.strip()[-300:]}"
            pytest.fail(reason) if IN_CI else pytest.skip(reason)
        if not folder.is_dir():  # another process may have been faster
            try:
                Path(fresh, "it").rename(folder)
            except OSError:
                assert folder.is_dir()
        shutil.rmtree(f"{fresh}/it", ignore_errors=True)
    return folder
