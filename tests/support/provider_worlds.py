"""Providers of each kind, and what happens to the workers behind them.

Each of the three workers is for one thing to happen to; a world offers the things that can happen in it.
"""

import asyncio
import os
import signal
import time
from pathlib import Path

from support.ray import SECONDS
from support.until import until

from rollbook.adapters.clock import SystemClock
from rollbook.adapters.memory.provider import MemoryProvider
from rollbook.adapters.ray.actors import RayActorsProvider
from rollbook.adapters.ray.provider import RayWorkerProvider
from rollbook.adapters.static import FileProvider, StaticProvider
from rollbook.projections.ports import HostAndPort

STEADY, RESTARTED, KILLED = "rollout-0-0", "rollout-1-0", "rollout-2-0"


class MemoryWorld:
    """Lists in this process."""

    counts_lives = True
    """Whether it knows the numbers of lives."""
    alive = True
    """What it says of a worker that serves; None where it cannot know."""

    def __init__(self):
        self.provider = MemoryProvider(SystemClock())
        for port, worker in enumerate((STEADY, RESTARTED, KILLED), 8000):
            self._place(worker, 1, port)

    def _place(self, worker, incarnation, port):
        addresses = {"primary": HostAndPort("127.0.0.2", port)}
        self.provider.place(worker, incarnation=incarnation, addresses=addresses)

    async def restart(self):
        """RESTARTED lives again, at another address."""
        self._place(RESTARTED, 2, 9000)

    async def kill(self):
        """KILLED is dead and does not come back."""
        self.provider.kill(KILLED)

    async def cut_off(self):
        """Nobody can tell any more where anybody is."""
        self.provider.available = False


class StaticWorld:
    """The configuration: nothing happens in it."""

    counts_lives = False
    alive = None

    def __init__(self):
        self.provider = StaticProvider(
            {
                worker: {"primary": HostAndPort("127.0.0.2", port)}
                for port, worker in enumerate((STEADY, RESTARTED, KILLED), 8000)
            }
        )


class FileWorld:
    """A file that somebody writes anew."""

    counts_lives = True
    alive = None

    def __init__(self, folder):
        self.file = folder / "workers.toml"
        self._places = {worker: (1, port) for port, worker in enumerate((STEADY, RESTARTED, KILLED), 8000)}
        self._write()
        self.provider = FileProvider(self.file)

    def _write(self):
        self.file.write_text(
            "".join(
                f'[workers.{worker}]\nprimary = "127.0.0.2:{port}"\nincarnation = {incarnation}\n'
                for worker, (incarnation, port) in self._places.items()
            )
        )

    async def restart(self):
        self._places[RESTARTED] = (2, 9000)
        self._write()

    async def cut_off(self):
        self.file.unlink()


class Engine:
    """An actor of a framework's own, which counts how often it is asked."""

    def __init__(self, answer):
        self._answer = answer
        self._asked = 0

    def get_addr(self):
        self._asked += 1
        if isinstance(self._answer, type):
            raise self._answer("it says so")
        return self._answer

    def asked(self):
        return self._asked

    def hang(self):
        time.sleep(3600)

    def hang_until(self, file):
        while not Path(file).exists():
            time.sleep(0.02)

    def say(self, answer):
        """From now on; a class of errors is raised."""
        self._answer = answer


class Odd:
    """An address that fails when it is looked at."""

    @property
    def host(self):
        raise RuntimeError("not now")


class Stranger:
    """An answer of a class that one process does not have."""

    def __init__(self, pid):
        self._pid = pid

    def __reduce__(self):
        return _stranger, (self._pid,)


def _stranger(pid):
    if pid == os.getpid():
        raise ModuleNotFoundError("No module named 'framework'")
    return Stranger(pid)


class RayActorsWorld:
    """Named actors that nobody of ours starts."""

    counts_lives = True
    alive = True

    def __init__(self):
        self.namespace = f"framework-{os.getpid()}"
        self.provider = asyncio.run(
            RayActorsProvider.create("engine/{worker}", namespace=self.namespace, deadline=SECONDS)
        )
        self._actors = {}
        for port, worker in enumerate((STEADY, RESTARTED, KILLED), 8000):
            self.start(worker, {"primary": f"127.0.0.2:{port}", "incarnation": 1})

    def start(self, worker, answer, **options):
        import ray

        made = ray.remote(Engine).options(
            name=f"engine/{worker}", num_cpus=0, **{"namespace": self.namespace, "max_concurrency": 2} | options
        )
        actor = self._actors[worker] = made.remote(answer)
        ray.get(actor.asked.remote(), timeout=SECONDS)
        return actor

    def end(self, worker):
        import ray

        ray.kill(self._actors.pop(worker))

    async def restart(self):
        self.end(RESTARTED)
        await self._until_free(RESTARTED)
        await asyncio.to_thread(self.start, RESTARTED, {"primary": "http://127.0.0.2:9000", "incarnation": 2})

    async def _until_free(self, worker):
        async def look():
            return await self.provider.locate([worker])

        await until(look, lambda found: found == {}, SECONDS)

    def close(self):
        for worker in list(self._actors):
            self.end(worker)


class RayWorld:
    """A manager with demo workers."""

    counts_lives = True
    alive = True

    def __init__(self, manager, fleet):
        self.provider = asyncio.run(RayWorkerProvider.create(fleet, deadline=SECONDS))
        self._manager = manager

    def _state(self, worker):
        return self._manager.locate([worker], seconds=SECONDS)[worker]

    async def restart(self):
        os.kill(self._state(RESTARTED).pid, signal.SIGKILL)
        await self._until(RESTARTED, lambda now: now.stage == "serving" and now.incarnation == 2)

    async def kill(self):
        os.kill(self._state(KILLED).pid, signal.SIGKILL)
        await self._until(KILLED, lambda now: not now.alive)

    async def cut_off(self):
        import ray

        ray.kill(ray.get_actor(self._manager.name, namespace=self._manager.namespace))

    async def _until(self, worker, seen):
        async def look():
            return self._state(worker)

        await until(look, seen, SECONDS)
