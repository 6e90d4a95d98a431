"""A measured proxy answers as the one within, and notes every call once."""

import asyncio
import random

import pytest
from support.fleet import on_virtual_time

from rollbook.adapters.memory.clock import LoopClock
from rollbook.adapters.memory.proxy import MemoryProxy
from rollbook.adapters.proxies.measured import BROKEN_OFF, RESULTS, MeasuredProxy
from rollbook.projections.ports import Capabilities, Pending, ProxyUnavailable, Target

TARGET = Target(worker="rollout-0-0", incarnation=1, url="http://10.0.0.1:8000")


def measured(**capabilities):
    within = MemoryProxy(
        "a", "f", LoopClock(), random.Random(1), capabilities=Capabilities(async_add=True, **capabilities)
    )
    notes = []
    return within, MeasuredProxy(within, lambda *note: notes.append(note)), notes


@on_virtual_time
async def test_answers_pass_and_are_noted_with_their_results():
    within, proxy, notes = measured()
    pending = await proxy.add(TARGET)
    assert isinstance(pending, Pending)
    await asyncio.sleep(1)
    await proxy.outcome(pending)
    listing = await proxy.list()
    assert [entry.worker for entry in listing.entries] == ["rollout-0-0"]
    await proxy.drain(listing.entries[0])
    await proxy.remove(listing.entries[0])
    assert [note[:3] for note in notes] == [
        ("a", "add", "pending"),
        ("a", "outcome", "done"),
        ("a", "list", "done"),
        ("a", "drain", "unsupported"),
        ("a", "remove", "done"),
    ]
    assert all(note[2] in RESULTS and note[3] >= 0 for note in notes)
    assert (proxy.name, proxy.kind, proxy.capabilities) == (within.name, within.kind, within.capabilities)


@on_virtual_time
async def test_errors_pass_and_are_noted():
    within, proxy, notes = measured()
    within.available = False
    with pytest.raises(ProxyUnavailable):
        await proxy.list()
    assert [note[:3] for note in notes] == [("a", "list", "unavailable")]


@on_virtual_time
async def test_a_call_that_nobody_waits_for_any_more_is_noted_as_such():
    within, proxy, notes = measured()
    within.stalled = True
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2):
            await proxy.list()
    assert [note[:3] for note in notes] == [("a", "list", BROKEN_OFF)]
