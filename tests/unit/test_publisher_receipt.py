"""Receipts: one ending, seen from threads and from asyncio, and never a blocked event loop."""

import asyncio
import threading

import pytest

from rollbook.adapters.ids import UuidV7
from rollbook.adapters.publisher import NotSent, Receipt, WouldBlock
from rollbook.adapters.publisher.receipt import Book

SOON = 20


@pytest.fixture
def receipt() -> Receipt[int]:
    return Receipt(Book(UuidV7()))


def test_a_thread_waits_for_the_sequence(receipt):
    results: list[int] = []
    waiters = [threading.Thread(target=lambda: results.append(receipt.result(SOON))) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    receipt.settle(7)
    for waiter in waiters:
        waiter.join(SOON)
    assert results == [7, 7, 7]
    assert receipt.done
    assert receipt.error is None


def test_only_the_first_ending_counts(receipt):
    receipt.settle(None, NotSent("no"))
    receipt.settle(7)
    with pytest.raises(NotSent, match="no"):
        receipt.result()
    assert isinstance(receipt.error, NotSent)


def test_a_deadline_ends_the_waiting_and_not_the_fact(receipt):
    with pytest.raises(TimeoutError, match="it stays in the outbox"):
        receipt.result(0.01)
    receipt.settle(1)
    assert receipt.result() == 1


async def test_asyncio_awaits_it(receipt):
    threading.Timer(0.02, receipt.settle, (9,)).start()
    async with asyncio.timeout(SOON):
        assert await asyncio.gather(receipt, receipt) == [9, 9]
    assert await receipt == 9


async def test_awaiting_can_be_cancelled(receipt):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await receipt
    receipt.settle(1)
    assert await receipt == 1


async def test_a_running_loop_is_never_blocked(receipt):
    with pytest.raises(WouldBlock, match="await receipt"):
        receipt.result(1)
    with pytest.raises(WouldBlock):
        receipt.wait_persisted(1)
    receipt.settle(3)
    assert receipt.result() == 3  # nothing to wait for


def test_the_loop_that_waited_may_be_gone(receipt):
    async def give_up() -> None:
        waiting = asyncio.ensure_future(receipt)
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(give_up())
    receipt.settle(4)
    assert receipt.result() == 4


def test_persisted_is_told_before_the_end(receipt):
    assert not receipt.persisted
    threading.Timer(0.02, receipt.mark_persisted).start()
    assert receipt.wait_persisted(SOON)
    assert not receipt.done


def test_what_the_log_has_is_persisted(receipt):
    receipt.settle(1)
    assert receipt.wait_persisted(0)


def test_what_is_not_sent_is_not_persisted(receipt):
    receipt.settle(None, NotSent("no"))
    assert not receipt.wait_persisted(SOON)


def test_the_id_is_the_same_for_all_who_ask(receipt):
    ids: list[str] = []
    askers = [threading.Thread(target=lambda: ids.append(receipt.id)) for _ in range(8)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(SOON)
    assert len(set(ids)) == 1
    assert len(ids[0]) == 36


async def test_who_stopped_waiting_is_not_kept(receipt):
    """A caller may ask again and again for as long as NATS is away."""
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(receipt.result, 0.001)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await receipt
    assert not receipt._watchers
    receipt.settle(1)
    assert await receipt == 1
