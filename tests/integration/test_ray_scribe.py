"""What the Ray manager says of a worker's end arrives in the log, whatever the worker's own code said of it."""

import pytest
from support.nats import DEADLINE
from support.ray import demo_spec
from support.stream import FleetStream

from rollbook.adapters.publisher import Publisher
from rollbook.adapters.ray.scribe import Scribe
from rollbook.events import WorkerDown

pytestmark = pytest.mark.integration

W = "rollout-0-0"


@pytest.mark.parametrize("reason", ["x" * 2_000_000, "cannot read \udcff.safetensors", "\udcff" * 1_000_000, "a\0b"])
async def test_an_end_is_told_whatever_its_reason_is(nats_server, fleet, reason):
    """I8: refused at the call, the dead would stay in the log, and in every router, as alive."""
    stream = FleetStream(nats_server.url, fleet).make()
    async with Publisher(fleet, nats_server.url, name="ray-manager") as publisher:
        scribe = Scribe(publisher, demo_spec(W), 1)
        number = await scribe.begin(0, pid=1, node="h")
        scribe.say(WorkerDown, evidence="exited", reason=reason)
        assert await publisher.aflush(DEADLINE)
    *_, down = [line.fact for line in stream.lines()]
    assert (type(down), down.incarnation) == (WorkerDown, number)
    assert 0 < len(down.reason) <= 500
