"""The demo without `--chaos`: the controller in this process, an embedded NATS, workers that their manager restarts.

Everything is as a user would have it: `rollbook.toml` in a folder, an embedded NATS, a manager actor in a local Ray,
sglang-router as a process. Other commands of Rollbook work in that folder meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Final

from rollbook.adapters.bootstrap import Built, build
from rollbook.adapters.demo.chaos import Chaos, make_schedule
from rollbook.adapters.demo.cluster import local_ray
from rollbook.adapters.demo.errors import DemoFailed
from rollbook.adapters.demo.hunting import Hunter
from rollbook.adapters.demo.live import Show
from rollbook.adapters.demo.stage import (
    ANSWER_SECONDS,
    FLEET,
    POOL,
    PROXY,
    Ended,
    Options,
    Stage,
    Up,
    background,
    show_fact,
)
from rollbook.adapters.demo.worker import DemoWorker
from rollbook.adapters.ray.spec import ServeWorkerSpec, Spec, import_path
from rollbook.adapters.settings import FILE_NAME, load
from rollbook.projections.state.fold import State

_CONFIGURATION: Final = """\
# What `rollbook demo` runs with.
fleet = "{fleet}"

[provider]
kind = "ray"

[pools.{pool}]

[[proxies]]
name = "{proxy}"
kind = "sglang"
admin_url = "{router}"
pools = ["{pool}"]

[reconcile]
resync = 1.0  # the default is 5: how long it may take to notice that a router lost its list
"""


class CalmStage(Stage):
    """Kills of workers, and one restart of the router."""

    converge_seconds = 60.0

    def __init__(self, options: Options, directory: Path) -> None:
        super().__init__(options, directory)
        self._built: Built | None = None
        self._chaos: Chaos | None = None

    @property
    def state(self) -> State | None:
        """The controller's state."""
        projector = None if self._built is None else self._built.controller.projector
        return None if projector is None else projector.state

    @contextlib.asynccontextmanager
    async def put_up(self, show: Show) -> AsyncGenerator[Up]:
        """See `Stage`."""
        show.note("starting sglang-router, a local Ray and an embedded NATS")
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(self.router.kill)
            async with background(self.router.start()) as starting:
                await stack.enter_async_context(local_ray(len(self.workers) + 1))
                await starting
            file = self.directory / FILE_NAME
            file.write_text(
                _CONFIGURATION.format(fleet=FLEET, pool=POOL, proxy=PROXY, router=self.router.url), encoding="utf-8"
            )
            config = load(file, environ={}, cwd=self.directory)
            built = self._built = await stack.enter_async_context(build(config.settings, config.directory, environ={}))
            show.note(f"sglang-router answers on {self.router.url}; rollbook's other commands work in {self.directory}")
            async with asyncio.TaskGroup() as group:
                group.create_task(built.controller.run(), name="controller")
                try:
                    await built.controller.started.wait()
                    if built.controller.projector is None:
                        raise DemoFailed("the controller started without a projector")
                    built.controller.projector.witness(lambda stored, recorded, _: show_fact(show, stored, recorded))
                    yield Up(built.controller.policy, built.log, built.nats.environ())
                finally:
                    built.controller.stop()

    def specs(self) -> list[Spec]:
        """See `Stage`."""
        return [
            ServeWorkerSpec(name=name, actor=import_path(DemoWorker), kwargs={"answer_seconds": ANSWER_SECONDS})
            for name in self.workers
        ]

    async def disturb(self, hunter: Hunter, show: Show) -> None:
        """See `Stage`."""
        options = self.options
        schedule = make_schedule(options.seed, workers=self.workers, seconds=options.seconds, kills=options.kills)
        self._chaos = Chaos(schedule, hunter, self.router.restart, show.note)
        await self._chaos.run()

    def settled(self, *, well: bool) -> bool:
        """See `Stage`."""
        return well and self._built is not None and all(lane.idle for lane in self._built.controller.lanes.values())

    async def ended(self) -> Ended:
        """See `Stage`."""
        state = self.state
        if state is None or self._chaos is None:
            raise DemoFailed("the controller has no state at the end of the run")
        return Ended(
            live_sequence=state.sequence,
            live_digest=state.digest(),
            kills_wanted=self.options.kills,
            restarts=tuple(self._chaos.restarts),
        )
