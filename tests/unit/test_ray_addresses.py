"""What a manager's answer about one worker says of its address."""

import pytest

from rollbook.adapters.ray.client import addresses, primary
from rollbook.adapters.ray.spec import WorkerState
from rollbook.projections.ports import HostAndPort, UnknownWorker, WorkerUnreachable

RPC = {"rpc": HostAndPort("h", 1)}


def test_a_worker_without_a_primary_address_has_its_others():
    """A rank that takes no requests, or a command that listens for its cell only."""
    state = WorkerState(name="w-0-1", stage="serving", incarnation=1, addresses=RPC)
    assert addresses(state, "w-0-1", "m") == RPC
    with pytest.raises(WorkerUnreachable, match="has no primary address, only rpc, says manager 'm'"):
        primary(state, "w-0-1", "m")


def test_one_that_is_down_or_a_stranger():
    state = WorkerState(name="w-0-1", stage="down", incarnation=1, addresses=RPC, reason="it exited")
    with pytest.raises(WorkerUnreachable, match="is down: it exited"):
        primary(state, "w-0-1", "m")
    with pytest.raises(UnknownWorker):
        primary(None, "w-0-1", "m")
