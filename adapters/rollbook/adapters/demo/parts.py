"""The parts of a chaos run, as whoever hurts them sees them."""

from __future__ import annotations

from typing import Protocol

from rollbook.adapters.demo.programs import Program


class Parts(Protocol):
    """What can be hurt, and how it is seen to be well again."""

    monitor: Program
    recoverer: Program

    def leader(self) -> Program | None:
        """The controller that leads by the log's word; None if it is none that runs."""
        ...

    def standby(self) -> Program | None:
        """A controller that works and does not lead."""
        ...

    @property
    def takeovers(self) -> int:
        """How often the lead was taken so far, by the log's word."""
        ...

    @property
    def nats_pid(self) -> int | None:
        """The server's process, None while there is none."""
        ...

    async def nats_answers(self) -> bool:
        """Whether the server takes connections."""
        ...

    async def manager_pid(self) -> int | None:
        """The Ray manager's process; None if it does not answer."""
        ...

    def stop_router(self) -> None:
        """SIGSTOP."""
        ...

    def continue_router(self) -> None:
        """SIGCONT."""
        ...

    async def router_answers(self) -> bool:
        """Whether it says that it is well."""
        ...

    async def kill_router(self) -> None:
        """SIGKILL."""
        ...

    async def start_router(self) -> None:
        """On its port, with an empty list."""
        ...

    async def kill_node(self) -> None:
        """The second Ray node. Tells the hunter which lives that ended."""
        ...

    async def start_node(self) -> None:
        """Let it join again."""
        ...
