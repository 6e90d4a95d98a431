"""This process's place in a Ray cluster: joined where it is needed, joined anew after the cluster was, left at the end.

Ray's driver library, left alone, ends the whole process a minute after the cluster's head is gone; a controller must
outlive that, so where it makes the connection it also tells Ray to go on trying. A head that comes back without its
memory is another cluster, of which Ray's library takes no notice: it goes on asking for actors of the former one. So
whoever got no answer says so at the next `join`, and there it is found out. (While the head is gone, Ray cannot leave
without ending the process; once another one answers, it can.)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Generator
from typing import Any, Final, TypeVar

import structlog

from rollbook.adapters.ray.border import ActorBroken, ActorGone, ActorSilent, RayThread, aside
from rollbook.events import RollbookError
from rollbook.projections.ports import ProviderUnavailable

T = TypeVar("T")

_PATIENCE: Final = ("RAY_gcs_rpc_server_reconnect_timeout_s", str(10 * 365 * 86400))
"""Ray's own setting: seconds without the cluster's head after which it ends the process (60 if it is not set)."""
JOIN_SECONDS: Final = 4.0
"""For joining the cluster when a provider is made, and for counting its nodes then: nobody waits for an address yet."""
_KNOCK_SECONDS: Final = 0.3
"""For the head's port to answer, once something else did not."""
_ASK_SECONDS: Final = 2.0

_log = structlog.get_logger()


@contextlib.contextmanager
def _patient() -> Generator[None]:
    """For Ray's first import and for joining: what it makes in between keeps to what it read when it was made.

    Not for longer: a Ray that this process starts would have it from the environment, and its nodes would outlive their
    head for ever.
    """
    name, seconds = _PATIENCE
    said = os.environ.get(name)
    os.environ.setdefault(name, seconds)
    try:
        yield
    finally:
        if said is None:
            os.environ.pop(name, None)


class RayCluster:
    """The cluster at `address` (as `ray.init` takes it; None: RAY_ADDRESS, or this machine's)."""

    def __init__(self, threads: RayThread, namespace: str, address: str | None) -> None:
        self._threads = threads
        self._namespace = namespace
        self._address = address
        self._joined_here = False
        self._head: str | None = None

    async def join_early(self, seconds: float) -> None:
        """Join it when a provider is made whose look-ups take `seconds`. It need not be there yet: they try again."""
        try:
            await self.join(max(seconds, JOIN_SECONDS))
        except RollbookError as exc:
            _log.warning("provider.ray.not_joined", address=self._address or "auto", error=str(exc))

    async def join(self, seconds: float, *, doubtful: bool = False) -> None:
        """Join it if this process has not joined any: whoever called `ray.init` before has chosen already.

        `doubtful` says that the last question got no answer: where this process joined here, it is seen to that the
        cluster is still the one that was joined. Raises as `aside`.
        """
        with _patient():
            import ray

        if ray.is_initialized():
            self._head = self._head or str(ray.get_runtime_context().gcs_address)
            if not (doubtful and self._joined_here):
                return
            if not await self._answers():
                raise ActorSilent(self._gone)
        await aside(self._threads, self._join, seconds, "the Ray cluster")

    async def answer(self, look: Awaitable[T], seconds: float, failed: str) -> T:
        """What comes of a look-up. Raises `ProviderUnavailable`, beginning with `failed`, also after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                return await look
        except (ActorGone, ActorSilent, ActorBroken) as exc:
            raise ProviderUnavailable(f"{failed}: {await self._why(str(exc))}") from exc
        except TimeoutError as exc:
            why = await self._why(f"no answer from Ray within {seconds:g} s")
            raise ProviderUnavailable(f"{failed}: {why}") from exc

    async def _why(self, said: str) -> str:
        """Why there was no answer, for people: that the head is gone, or else what was `said`."""
        return said if self._head is None or await self._answers() else self._gone

    @property
    def _gone(self) -> str:
        told = "whether its workers live is unknown, so newcomers wait and nobody is removed"
        return f"the head of the Ray cluster at {self._head} is gone: nobody answers there; {told}"

    async def _answers(self) -> bool:
        """Whether somebody listens where the head was. Ray itself must not be asked: its questions would hang."""
        host, _, port = str(self._head).rpartition(":")
        try:
            async with asyncio.timeout(_KNOCK_SECONDS):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except (OSError, TimeoutError):
            return False
        writer.close()
        return True

    async def leave(self, seconds: float) -> None:
        """Leave it if it was joined here."""
        if self._joined_here:
            import ray

            self._joined_here = False
            with contextlib.suppress(ActorSilent):
                await aside(self._threads, ray.shutdown, seconds, "leaving Ray")

    def _join(self) -> None:
        """Blocks. Notes by itself that it made the connection: whoever waited may have given up by then."""
        import ray

        if ray.is_initialized():
            if not (self._joined_here and self._is_another()):
                return
            _log.warning("provider.ray.cluster_replaced", head=self._head)
            ray.shutdown()
        # Ray has a handler of its own on standard error, and warns of what is meant to be so here: no handler for
        # SIGTERM in this thread, a token where the cluster asks for one.
        logging.getLogger("ray").setLevel(logging.ERROR)
        with _patient():
            ray.init(
                address=self._address or "auto", namespace=self._namespace, configure_logging=False, log_to_driver=False
            )
        self._joined_here = True
        self._head = str(ray.get_runtime_context().gcs_address)
        _log.info("provider.ray.joined", address=self._address or "auto")

    def _is_another(self) -> bool:
        """Whether the head that answers now has never heard of the node that was joined. As `head_nodes`."""
        import ray

        nodes = head_nodes(self._head or "")
        return bool(nodes) and str(ray.get_runtime_context().get_node_id()) not in nodes


def head_nodes(head: str, seconds: float = _ASK_SECONDS) -> dict[str, bool]:
    """Whether each node that the cluster's head at `head` has heard of is alive. Blocks; raises Ray's errors.

    Not `ray.nodes()`: it asks through the connection that was made when this process joined, which waits while the head
    is gone, and Ray was once seen to say then that it would end the process.
    """
    from ray import _raylet

    # As in `records`: without a public name, and what Ray's own libraries use.
    client = vars(_raylet)["GcsClient"](address=head)
    known: dict[Any, Any] = client.get_all_node_info(timeout=seconds)
    return {node_id.hex(): info.state == 0 for node_id, info in known.items()}
