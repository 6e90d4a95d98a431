"""Those who publish: one fact after the other, each sent until the log has it [I8]."""

import asyncio

import msgspec

from rollbook.adapters.memory.ids import SeededIds
from rollbook.events import Codec, Fact
from rollbook.events.times import rfc3339
from rollbook.projections.ports import LogUnavailable


def shown(fact: Fact) -> str:
    """A fact with the fields that are set."""
    fields = msgspec.json.decode(msgspec.json.encode(fact))
    return f"{type(fact).__name__} " + " ".join(f"{key}={value}" for key, value in fields.items())


class Author:
    """A publisher in a worker process: one fact after the other, each sent until the log has it [I8]."""

    def __init__(self, world, name: str) -> None:
        self.name = name
        self.accepted: list[tuple[str, str]] = []
        """(worker or "", id) in the order of acceptance."""
        self._world = world
        self._codec = Codec(world.policy.fleet)
        self._ids = SeededIds(world.rng(f"ids/{name}"))
        self._rng = world.rng(f"author/{name}")
        self._queue: asyncio.Queue = asyncio.Queue()

    def draft(self, fact: Fact):
        return self._codec.draft(fact, id=self._ids.new(), time=rfc3339(self._world.clock.now()), publisher=self.name)

    def publish(self, fact: Fact) -> asyncio.Future:
        """Accept a fact; the future gives its sequence."""
        draft = self.draft(fact)
        self.accepted.append((getattr(fact, "worker", ""), draft.id))
        receipt = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((draft, receipt))
        self._world.note(f"{self.name} publishes {shown(fact)}")
        return receipt

    async def run(self) -> None:
        while True:
            draft, receipt = await self._queue.get()
            receipt.set_result(await self.send(draft))
            if self._rng.random() < 0.1:
                self._world.fleet.straggle(self._repeat(draft, self._rng.choice([0, self._rng.uniform(0, 40)])))

    async def _repeat(self, draft, seconds: float) -> None:
        """The same fact once more, perhaps after the log has forgotten its id."""
        await asyncio.sleep(seconds)
        await self.send(draft)
        self._world.counts["repeated"] += 1

    async def send(self, draft, expect=None) -> int:
        while True:
            try:
                [sequence] = await self._world.log.append([draft], expect=expect)
            except LogUnavailable:
                await asyncio.sleep(self._rng.uniform(0.05, 0.4))
            else:
                return sequence
