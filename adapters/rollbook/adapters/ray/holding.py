"""The ports of a worker on its node, held from their choice until its code listens on them."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Mapping, Sequence

from rollbook.adapters.local_ports import rotated
from rollbook.adapters.ray.ports import PortInfo, PortTaken, choose, of_rank


class Held:
    """Chooses at once. Raises `PortTaken`.

    Each port is listened on meanwhile, on all of the node's interfaces, so that of two workers that start on one node
    at a time only one gets it.
    """

    def __init__(self, infos: Sequence[PortInfo], rank: int, former: Mapping[str, int]) -> None:
        self._sockets: dict[int, socket.socket] = {}
        try:
            own = of_rank(infos, rank)
            candidates = rotated(random.randrange(1 << 16))  # noqa: S311 - no secret
            self.ports = choose(own, former=former, is_free=self._hold, candidates=candidates)
            used = {self.ports[info.name] + index for info in own for index in range(info.count)}
            for port in self._sockets.keys() - used:
                self._sockets.pop(port).close()
        except BaseException:
            self.let_go()
            raise

    def let_go(self) -> None:
        """Now its code may listen. Again does nothing."""
        while self._sockets:
            self._sockets.popitem()[1].close()

    def _hold(self, port: int) -> bool:
        """Whether it was free, and is ours now."""
        if port in self._sockets:
            return True
        with contextlib.ExitStack() as stack:
            try:
                held = stack.enter_context(socket.socket())
            except OSError as exc:
                told = f"{len(self._sockets)} ports are held while free ones are looked for, and then {exc.strerror}"
                raise PortTaken(f"{told}: raise the node's limit of open files (ulimit -n)") from exc
            # What is left of a former life's connections does not make its port a taken one.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                held.bind(("", port))
                held.listen(1)
            except OSError:
                return False
            stack.pop_all()
        self._sockets[port] = held
        return True
