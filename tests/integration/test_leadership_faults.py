"""Leadership on JetStream when owners die, answers are lost and servers go away: I7, at most one acts."""

import asyncio
import contextlib
import time

import pytest
from structlog.testing import capture_logs
from support.nats import DEADLINE
from support.until import until

from rollbook.adapters.jetstream.api import question
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.leadership import JetStreamLeadership
from rollbook.projections.ports import AlreadyLed, LogUnavailable

pytestmark = pytest.mark.integration

FLEET = "f"
STREAM = f"KV_ROLLBOOK_{FLEET}_leader"
KEY = f"$KV.ROLLBOOK_{FLEET}_leader.leader"


@pytest.fixture
def server(start_nats):
    return start_nats(jetstream="{ sync_interval: always }")


@pytest.fixture
async def client(server):
    client = await connect(Connection(url=server.url), name="tests", timeout=DEADLINE)
    yield client
    await client.close()


@pytest.fixture
async def contender(client):
    """Makes contenders, which are gone after the test."""
    made = []

    def make(lease=DEADLINE):
        made.append(JetStreamLeadership(client, FLEET, lease=lease))
        return made[-1]

    yield make
    for one in made:
        if one._keeper is not None:
            one._keeper.cancel()
            await asyncio.wait({one._keeper})


def die(leadership):
    """As a process that is killed: nothing is renewed or released any more."""
    leadership._keeper.cancel()


async def acquire_when_free(leadership, owner):
    async with asyncio.timeout(DEADLINE):
        while True:
            try:
                return await leadership.acquire(owner)
            except (AlreadyLed, LogUnavailable):
                await asyncio.sleep(0.05)


async def renewed(leadership, times=1):
    before = leadership._revision

    async def revision():
        return leadership._revision

    await until(revision, lambda now: now >= before + times)


async def test_it_is_given_back_also_if_a_cancellation_is_lost_in_the_middle_of_a_renewal(contender, monkeypatch):
    one, two = contender(), contender()

    async def lose_one_cancellation(claim):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    monkeypatch.setattr(one, "_keep", lose_one_cancellation)
    monkeypatch.setattr(one, "_timeout", 0.5)
    epoch = await one.acquire("one")
    async with asyncio.timeout(DEADLINE / 2):  # its claim would run out later than that
        await one.release()
        monkeypatch.setattr(one, "_timeout", DEADLINE)
        assert await two.acquire("two") > epoch


async def test_a_living_owner_keeps_it_beyond_its_time(contender):
    lease = 4.0
    one = contender(lease)
    await one.acquire("one")
    began = time.monotonic()
    lost = asyncio.create_task(one.lost())
    while time.monotonic() - began < 1.5 * lease:
        await renewed(one)
        with pytest.raises(AlreadyLed, match="one"):
            await contender(lease).acquire("two")
    assert not lost.done()
    lost.cancel()


async def test_a_dead_owner_blocks_no_longer_than_its_time(contender):
    one, two = contender(1.0), contender(1.0)
    first = await one.acquire("one")
    die(one)
    with pytest.raises(AlreadyLed, match="one"):
        await two.acquire("two")
    assert await acquire_when_free(two, "two") > first


async def test_epochs_rise_over_expiry_and_restarts_of_the_server(server, contender):
    epochs = []
    for number in range(3):
        one = contender(1.0)
        epochs.append(await acquire_when_free(one, f"owner-{number}"))
        die(one)
        server.restart()
    assert epochs == sorted(set(epochs))


async def test_it_is_lost_to_whoever_has_taken_it(client, contender):
    one, two = contender(3.0), contender(3.0)
    await one.acquire("one")
    lost = asyncio.create_task(one.lost())
    await question(client, f"STREAM.PURGE.{STREAM}", timeout=DEADLINE)
    await two.acquire("two")
    async with asyncio.timeout(DEADLINE):
        assert (await lost).startswith("two took it at 2")
    await one.release()
    with pytest.raises(AlreadyLed, match="two"):
        await contender().acquire("three")


async def test_it_is_lost_when_the_claim_is_removed(client, contender):
    one = contender(3.0)
    first = await one.acquire("one")
    await question(client, f"STREAM.PURGE.{STREAM}", timeout=DEADLINE)
    async with asyncio.timeout(DEADLINE):
        assert await one.lost() == "the claim ran out, or was removed"
    assert await one.acquire("one") > first
    lost = asyncio.create_task(one.lost())
    await renewed(one)
    assert not lost.done()
    lost.cancel()


async def test_a_short_outage_loses_nothing(server, contender):
    one = contender(9.0)
    await one.acquire("one")
    lost = asyncio.create_task(one.lost())
    server.restart()
    await renewed(one)
    assert not lost.done()
    lost.cancel()


async def test_an_owner_stops_before_anybody_else_can_begin(server, contender):
    one, two = contender(1.0), contender(1.0)
    first = await one.acquire("one")
    server.pause()
    async with asyncio.timeout(DEADLINE):
        assert await one.lost() == "it could not be renewed within 0.9 s"
    server.resume()
    assert await acquire_when_free(two, "two") > first


async def test_a_renewal_whose_answer_was_lost_is_no_loss(server, contender):
    one = contender(9.0)  # an attempt is given three seconds
    await one.acquire("one")
    lost = asyncio.create_task(one.lost())
    await renewed(one)
    with capture_logs() as logs:
        server.pause()

        async def unanswered():
            return [entry for entry in logs if entry["event"] == "leadership.not_renewed"]

        await until(unanswered, bool)
        server.resume()
        await renewed(one, times=2)
    assert not lost.done()
    lost.cancel()
    await one.release()
    await contender(9.0).acquire("two")


async def test_a_release_that_nobody_hears_is_told_and_runs_out(server, contender):
    one = contender(1.0)
    await one.acquire("one")
    server.kill()
    with capture_logs() as logs:
        assert not await one.release()
    assert "leadership.not_released" in {entry["event"] for entry in logs}
    server.start()
    await acquire_when_free(contender(1.0), "two")


@pytest.mark.parametrize("claim", [b"garbage", b'{"owner":' + b"[" * 10_000 + b"]" * 10_000 + b"}"])
async def test_a_claim_that_cannot_be_read_is_respected(client, contender, claim):
    one = contender(3.0)
    await one.acquire("one")
    die(one)
    await client.jetstream().publish(KEY, claim, timeout=DEADLINE)
    with pytest.raises(AlreadyLed, match="somebody whose claim cannot be read since 2"):
        await contender(3.0).acquire("two")


async def test_another_time_to_live_is_taken_over_when_it_is_free(client, contender):
    one = contender(30.0)
    await one.acquire("one")
    with pytest.raises(AlreadyLed):
        await contender(2.0).acquire("two")
    await one.release()
    await contender(2.0).acquire("two")
    config = (await question(client, f"STREAM.INFO.{STREAM}", timeout=DEADLINE))["config"]
    assert config["max_age"] == 1_800_000_000


async def test_an_outage_is_told(server, contender):
    server.kill()
    with pytest.raises(LogUnavailable):
        await contender(1.0).acquire("one")


async def test_a_keeper_that_fails_is_a_loss(contender, monkeypatch):
    one = contender(0.3)
    await one.acquire("one")

    async def broken(claim):
        raise RuntimeError("broken")

    monkeypatch.setattr(one, "_renew", broken)
    async with asyncio.timeout(DEADLINE):
        assert await one.lost() == "renewing it failed: RuntimeError('broken')"


async def test_a_claim_whose_answer_was_lost_is_taken_up_by_the_next_attempt(contender, monkeypatch):
    one, two = contender(), contender()
    hold = one._hold

    def lose_the_answer(claim):
        monkeypatch.setattr(one, "_hold", hold)
        raise LogUnavailable("no answer in time")

    monkeypatch.setattr(one, "_hold", lose_the_answer)
    with pytest.raises(LogUnavailable):
        await one.acquire("one")
    with pytest.raises(AlreadyLed, match="one"):
        await two.acquire("two")
    epoch = await one.acquire("one")
    assert one.left() > 0
    with pytest.raises(AlreadyLed, match="one"):
        await one.acquire("one")
    assert await one.release()
    assert await two.acquire("two") > epoch


async def test_a_claim_whose_answer_was_lost_can_be_given_back(contender, monkeypatch):
    one, two = contender(), contender()
    monkeypatch.setattr(one, "_hold", lambda claim: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await one.acquire("one")
    assert await one.release()
    await two.acquire("two")


async def test_who_waits_for_it_does_so_through_an_outage_and_gets_it_when_it_has_run_out(server, contender):
    one, two = contender(1.0), contender(1.0)
    await one.acquire("one")
    waiting = asyncio.create_task(two.free())
    server.kill()
    async with asyncio.timeout(DEADLINE):
        await one.lost()
    assert one.left() <= 0
    assert not waiting.done()
    server.start()
    async with asyncio.timeout(DEADLINE):
        await waiting


async def test_the_bucket_deleted_under_its_owner_is_a_loss_and_can_be_made_anew(client, contender):
    one, two = contender(1.0), contender(1.0)
    await one.acquire("one")
    await question(client, f"STREAM.DELETE.{STREAM}", timeout=DEADLINE)
    async with asyncio.timeout(DEADLINE):
        await one.lost()
    assert not await one.release()
    await two.acquire("two")
