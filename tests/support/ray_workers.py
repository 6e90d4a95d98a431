"""Workers that go wrong, one way each. Imported by name in the processes of Ray's workers."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

from rollbook.adapters.demo.worker import DemoWorker


class Broken:
    """Cannot be made."""

    def __init__(self, **_) -> None:
        raise ValueError("no weights at that path")


class Hangs:
    """Never comes to listen."""

    def __init__(self, **_) -> None:
        pass

    def start(self) -> dict[str, str]:
        time.sleep(3600)
        return {}


class Deaf:
    """Tells an address at which nobody listens."""

    def __init__(self, **_) -> None:
        pass

    def start(self) -> dict[str, str]:
        return {"primary": "127.0.0.2:1"}


class Supervisor(DemoWorker):
    """Its server counts as ended when a file appears; it notes that it was stopped."""

    def __init__(self, *, folder: str, **rest) -> None:
        super().__init__(**rest)
        self._folder = Path(folder)
        self._stopped = threading.Event()

    def wait(self) -> str:
        end = self._folder / f"end-{self.incarnation}"
        while not end.exists():
            time.sleep(0.02)
        return end.read_text()

    async def stop(self) -> None:
        await super().stop()
        (self._folder / f"stopped-{self.incarnation}").touch()


class Told(DemoWorker):
    """Starts as the file `told` in its folder says: `hang` waits until it says something else, `fail` fails."""

    def __init__(self, *, folder: str, **rest) -> None:
        super().__init__(**rest)
        self._file = Path(folder) / "told"

    async def start(self) -> dict[str, str]:
        told = await asyncio.to_thread(self._told)
        if told == "fail":
            raise RuntimeError("no weights at that path")
        return await super().start()

    def _told(self) -> str:
        while (told := self._file.read_text() if self._file.exists() else "") == "hang":
            time.sleep(0.05)
        return told


class Slow(DemoWorker):
    """Takes a while to stop."""

    async def stop(self) -> None:
        await asyncio.sleep(1)
        await super().stop()
