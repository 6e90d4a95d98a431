"""This process's place in a Ray cluster: joined where it is needed, and left where it was joined.

Ray's driver library, left alone, ends the whole process a minute after the cluster's head is gone; a controller must
outlive that, so where it makes the connection it also tells Ray to go on trying.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Final

import structlog

from rollbook.adapters.ray.border import ActorSilent, RayThread, aside

_PATIENCE: Final = ("RAY_gcs_rpc_server_reconnect_timeout_s", str(10 * 365 * 86400))
"""Ray's own setting: seconds without the cluster's head after which it ends the process (60 if it is not set)."""

_log = structlog.get_logger()


class RayCluster:
    """The cluster at `address` (as `ray.init` takes it; None: RAY_ADDRESS, or this machine's)."""

    def __init__(self, threads: RayThread, namespace: str, address: str | None) -> None:
        self._threads = threads
        self._namespace = namespace
        self._address = address
        self._joined_here = False

    async def join(self, seconds: float) -> None:
        """Join it if this process has not joined any: whoever called `ray.init` before has chosen already.

        Raises as `aside`.
        """
        import ray

        if ray.is_initialized():
            return
        self._joined_here |= await aside(self._threads, self._join, seconds, "the Ray cluster")

    async def leave(self, seconds: float) -> None:
        """Leave it if it was joined here."""
        if self._joined_here:
            import ray

            self._joined_here = False
            with contextlib.suppress(ActorSilent):
                await aside(self._threads, ray.shutdown, seconds, "leaving Ray")

    def _join(self) -> bool:
        """Blocks. Whether this call made the connection."""
        import ray

        if ray.is_initialized():
            return False
        os.environ.setdefault(*_PATIENCE)
        # Ray has a handler of its own on standard error, and warns of what is meant to be so here: no handler for
        # SIGTERM in this thread, a token where the cluster asks for one.
        logging.getLogger("ray").setLevel(logging.ERROR)
        ray.init(
            address=self._address or "auto", namespace=self._namespace, configure_logging=False, log_to_driver=False
        )
        _log.info("provider.ray.joined", address=self._address or "auto")
        return True
