"""What every `Readiness` must do, asked of the one in memory and of the one that probes a real HTTP worker."""

import asyncio

import pytest
from support.workers import HttpWorker

from rollbook.adapters.clock import SystemClock
from rollbook.adapters.memory.readiness import MemoryReadiness
from rollbook.adapters.proxies.readiness import HttpReadiness
from rollbook.projections.ports import Identity


class InMemory:
    """A worker in the readiness's own world of URLs."""

    url = "http://10.0.0.1:8000"

    def __init__(self):
        self.readiness = MemoryReadiness(SystemClock())

    async def start(self):
        self.readiness.serve(self.url, who="worker")

    def fall_ill(self):
        self.readiness.serve(self.url, "503 busy", who="worker")

    def recover(self):
        self.readiness.serve(self.url, who="worker")

    async def stop(self):
        self.readiness.close(self.url)

    async def close(self):
        """Nothing to let go of."""


class OverHttp:
    """A worker that really listens, and keeps its port while it is away."""

    def __init__(self):
        self.readiness = HttpReadiness(seconds=45)
        self._worker = HttpWorker()

    @property
    def url(self):
        return self._worker.url

    async def start(self):
        await self._worker.start()

    def fall_ill(self):
        self._worker.healthy = False

    def recover(self):
        self._worker.healthy = True

    async def stop(self):
        await self._worker.stop()

    async def close(self):
        await self._worker.stop()
        await self.readiness.close()


@pytest.fixture(params=[InMemory, OverHttp])
async def worker(request):
    worker = request.param()
    await worker.start()
    yield worker
    await worker.close()


async def test_a_worker_that_says_so_is_ready(worker):
    assert await worker.readiness.check(worker.url, "/health") is None


async def test_a_sick_worker_gives_a_reason_until_it_is_well(worker):
    worker.fall_ill()
    assert "503" in await worker.readiness.check(worker.url, "/health")
    worker.recover()
    assert await worker.readiness.check(worker.url, "/health") is None


async def test_who_is_gone_is_refused_and_asked_anew_when_it_is_back_on_its_url(worker):
    """I6: no answer is kept from one question to the next."""
    assert await worker.readiness.check(worker.url, "/health") is None
    await worker.stop()
    assert "connection refused" in await worker.readiness.check(worker.url, "/health")
    await worker.start()
    assert await worker.readiness.check(worker.url, "/health") is None


async def test_a_url_that_nobody_can_have_is_a_reason_and_no_error(worker):
    for url in ("nonsense", "http://", "http://no such host"):
        assert await worker.readiness.check(url, "/health")


async def test_many_can_be_asked_at_once(worker):
    asked = [worker.readiness.check(url, "/health") for url in [worker.url, "nonsense"] * 50]
    answers = await asyncio.gather(*asked)
    assert [answer is None for answer in answers] == [True, False] * 50


@pytest.mark.parametrize("where", [{"header": "X-Worker"}, {"path": "/server_info", "field": "worker"}])
async def test_a_stranger_on_a_reused_port_is_told_from_the_worker(worker, where):
    """I3: the address answers 200, and it is another worker."""
    assert await worker.readiness.check(worker.url, "/health", Identity("worker", **where)) is None
    reason = await worker.readiness.check(worker.url, "/health", Identity("rollout-3-0", **where))
    assert "another worker" in reason
    assert "'worker', not 'rollout-3-0'" in reason
    worker.fall_ill()
    assert "503" in await worker.readiness.check(worker.url, "/health", Identity("rollout-3-0", **where))
