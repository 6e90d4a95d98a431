"""Carries out a schedule of faults on the real parts, and notes when each part did its work again.

Faults of one part wait for each other; those of different parts overlap as they come. Whatever was stopped here is let
go again, also when the run is ended early.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Final, TypeVar

from rollbook.adapters.demo.chaos import until_moment
from rollbook.adapters.demo.errors import DemoFailed
from rollbook.adapters.demo.faults import OF_A_WORKER, Fault, Kind
from rollbook.adapters.demo.hunting import VICTIM_SECONDS, Hunter, Tell
from rollbook.adapters.demo.parts import Parts
from rollbook.adapters.demo.programs import Program
from rollbook.adapters.demo.records import Disturbance, How

T = TypeVar("T")

BACK_SECONDS: Final = 90.0
"""How long a part may take to do its work again; then the run goes on, and is judged by it."""
_POLL_SECONDS: Final = 0.1

STRIKES: Final[dict[Kind, How]] = {
    Kind.WORKER_KILLED: "killed",
    Kind.ACTOR_KILLED: "actor killed",
    Kind.WORKER_HUNG: "hung",
}
"""What ends a life of a worker, and how."""
_PART_OF: Final = {
    Kind.LEADER_KILLED: "controllers",
    Kind.LEADER_PAUSED: "controllers",
    Kind.STANDBY_KILLED: "controllers",
    Kind.MONITOR_KILLED: "monitor",
    Kind.MONITOR_PAUSED: "monitor",
    Kind.RECOVERER_KILLED: "recoverer",
    Kind.RECOVERER_PAUSED: "recoverer",
    Kind.NATS_KILLED: "nats",
    Kind.NATS_PAUSED: "nats",
    Kind.ROUTER_KILLED: "router",
    Kind.ROUTER_PAUSED: "router",
    Kind.NODE_KILLED: "node",
    Kind.MANAGER_KILLED: "manager",
}


class Arms:
    """Carries out `faults`."""

    def __init__(self, faults: Sequence[Fault], parts: Parts, hunter: Hunter, tell: Tell) -> None:
        self.disturbances: list[Disturbance] = []
        self.faults = faults
        self._parts = parts
        self._hunter = hunter
        self._tell = tell
        self._turns: dict[str, asyncio.Lock] = {}
        self._doing: dict[Kind, Callable[[Fault], Awaitable[None]]] = {
            **dict.fromkeys(STRIKES, self._strike),
            Kind.WORKER_PAUSED: self._pause_worker,
            Kind.MANAGER_KILLED: self._kill_manager,
            Kind.MONITOR_KILLED: self._kill_program,
            Kind.MONITOR_PAUSED: self._pause_program,
            Kind.RECOVERER_KILLED: self._kill_program,
            Kind.RECOVERER_PAUSED: self._pause_program,
            Kind.LEADER_KILLED: self._kill_leader,
            Kind.LEADER_PAUSED: self._pause_leader,
            Kind.STANDBY_KILLED: self._kill_standby,
            Kind.NATS_KILLED: self._hurt_nats,
            Kind.NATS_PAUSED: self._hurt_nats,
            Kind.ROUTER_KILLED: self._kill_router,
            Kind.ROUTER_PAUSED: self._pause_router,
            Kind.NODE_KILLED: self._kill_node,
        }

    async def run(self) -> None:
        """Do it all, from now on; return when every part is back, or was waited for long enough."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for fault in self.faults:
                group.create_task(self._in_turn(fault, began + fault.at))

    async def _in_turn(self, fault: Fault, at: float) -> None:
        await until_moment(at)
        part = fault.worker if fault.kind in OF_A_WORKER and fault.worker else _PART_OF[fault.kind]
        async with self._turns.setdefault(part, asyncio.Lock()):
            await self._doing[fault.kind](fault)

    # -------------------------------------------------------------- workers

    async def _strike(self, fault: Fault) -> None:
        await self._hunter.strike(
            fault.worker or "", STRIKES[fault.kind], port_taken=fault.port_taken, grace=fault.grace
        )

    async def _pause_worker(self, fault: Fault) -> None:
        worker = fault.worker or ""
        victim = await _seen(lambda: self._hunter.fresh(worker), VICTIM_SECONDS)
        if victim is None:
            self._note(fault, worker, time.time(), back=False)
            return
        at = time.time()
        async with _stopped(victim.pid):
            self._tell(f"{worker} {victim.incarnation} (pid {victim.pid}) stands still for {fault.seconds:.1f} s")
            await asyncio.sleep(fault.seconds)
        back = await _seen(lambda: self._hunter.fresh(worker), VICTIM_SECONDS) is not None
        self._note(fault, f"{worker} {victim.incarnation}", at, back=back)

    async def _kill_manager(self, fault: Fault) -> None:
        former = await _seen(self._parts.manager_pid)
        at = time.time()
        if former is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(former, signal.SIGKILL)
            self._tell(f"killed the Ray manager (pid {former})")

        async def another() -> bool:
            pid = await self._parts.manager_pid()
            return pid is not None and pid != former

        back = former is not None and await _seen(another) is not None
        self._note(fault, "manager", at, back=back)

    # -------------------------------------------------------------- Rollbook's own programs

    async def _kill_program(self, fault: Fault) -> None:
        program = self._parts.monitor if fault.kind is Kind.MONITOR_KILLED else self._parts.recoverer
        await self._kill(fault, program)

    async def _pause_program(self, fault: Fault) -> None:
        program = self._parts.monitor if fault.kind is Kind.MONITOR_PAUSED else self._parts.recoverer
        await self._pause(fault, program)

    async def _kill_leader(self, fault: Fault) -> None:
        """Over when another one has taken over, and the killed one works again."""
        leader = await _seen(_soon(self._parts.leader))
        before, at = self._parts.takeovers, time.time()
        if leader is None:
            self._note(fault, "controllers", at, back=False)
            return
        name = leader.name
        killing = asyncio.create_task(self._killed(leader, fault.seconds))
        try:
            taken = await _seen(_soon(lambda: self._parts.takeovers > before))
            self._note(fault, name, at, back=taken is not None)
            await killing
        finally:
            killing.cancel()

    async def _pause_leader(self, fault: Fault) -> None:
        """Over when another one has taken over; or, where NATS stood still too, when it goes on with its lease."""
        leader = await _seen(_soon(self._parts.leader))
        before, at = self._parts.takeovers, time.time()
        if leader is None or (pid := leader.pid) is None:
            self._note(fault, "controllers", at, back=False)
            return
        async with _stopped(pid):
            self._tell(f"{leader.name}, which leads, (pid {pid}) stands still for {fault.seconds:.1f} s")
            until = time.monotonic() + fault.seconds
            taken = await _seen(_soon(lambda: self._parts.takeovers > before), fault.seconds)
            if taken is not None:
                self._note(fault, leader.name, at, back=True)
            await until_moment(until)
        if taken is None:
            self._note(fault, leader.name, at, back=await _seen(_soon(self._parts.leader)) is not None)

    async def _kill_standby(self, fault: Fault) -> None:
        standby = await _seen(_soon(self._parts.standby))
        if standby is None:
            self._note(fault, "controllers", time.time(), back=False)
        else:
            await self._kill(fault, standby)

    async def _kill(self, fault: Fault, program: Program) -> None:
        at = time.time()
        back = await self._killed(program, fault.seconds)
        self._note(fault, program.name, at, back=back)

    async def _killed(self, program: Program, away: float) -> bool:
        """Kill it; whether it worked again in time."""
        await _seen(_soon(lambda: program.works))
        former = program.pid
        program.kill(away)
        self._tell(f"killed {program.name} (pid {former}); it is started again in {away:.1f} s")
        return await _seen(_soon(lambda: program.works and program.pid != former)) is not None

    async def _pause(self, fault: Fault, program: Program) -> None:
        await _seen(_soon(lambda: program.works))
        at, pid = time.time(), program.pid
        if pid is None:
            self._note(fault, program.name, at, back=False)
            return
        async with _stopped(pid):
            self._tell(f"{program.name} (pid {pid}) stands still for {fault.seconds:.1f} s")
            await asyncio.sleep(fault.seconds)
        self._note(fault, program.name, at, back=await _seen(_soon(lambda: program.works)) is not None)

    # -------------------------------------------------------------- NATS, router, node

    async def _hurt_nats(self, fault: Fault) -> None:
        """It hangs first in both cases: a server that only dies is back within a tenth of a second."""
        former = await _seen(_soon(lambda: self._parts.nats_pid))
        at = time.time()
        if former is None:
            self._note(fault, "nats", at, back=False)
            return
        killed = fault.kind is Kind.NATS_KILLED
        async with _stopped(former):
            then = "and is killed then" if killed else "and goes on then"
            self._tell(f"nats-server (pid {former}) stands still for {fault.seconds:.1f} s, {then}")
            await asyncio.sleep(fault.seconds)
            if killed:
                os.kill(former, signal.SIGKILL)

        async def answers() -> bool:
            pid = self._parts.nats_pid
            return pid is not None and (pid != former) is killed and await self._parts.nats_answers()

        self._note(fault, "nats", at, back=await _seen(answers) is not None)

    async def _kill_router(self, fault: Fault) -> None:
        at = time.time()
        await self._parts.kill_router()
        self._tell(f"killed sglang-router; it is started again in {fault.seconds:.1f} s, with an empty list")
        await asyncio.sleep(fault.seconds)
        self._note(fault, "router", at, back=await _done(self._parts.start_router))

    async def _pause_router(self, fault: Fault) -> None:
        at = time.time()
        self._parts.stop_router()
        self._tell(f"sglang-router stands still for {fault.seconds:.1f} s")
        try:
            await asyncio.sleep(fault.seconds)
        finally:
            self._parts.continue_router()
        self._note(fault, "router", at, back=await _seen(self._parts.router_answers) is not None)

    async def _kill_node(self, fault: Fault) -> None:
        at = time.time()
        await self._parts.kill_node()
        self._tell(f"killed the second Ray node; it is started again in {fault.seconds:.1f} s")
        await asyncio.sleep(fault.seconds)
        self._note(fault, "second Ray node", at, back=await _done(self._parts.start_node))

    def _note(self, fault: Fault, whom: str, at: float, *, back: bool) -> None:
        until = time.time() if back else None
        self.disturbances.append(Disturbance(what=str(fault.kind), whom=whom, at=at, until=until))
        told = f"is back after {time.time() - at:.1f} s" if back else "is not back"
        self._tell(f"{fault.kind}: {whom} {told}")


@contextlib.asynccontextmanager
async def _stopped(pid: int) -> AsyncGenerator[None]:
    """It stands still meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _soon(look: Callable[[], T]) -> Callable[[], Awaitable[T]]:
    """The same, awaited."""

    async def looked() -> T:
        return look()

    return looked


async def _seen(look: Callable[[], Awaitable[T | None]], seconds: float = BACK_SECONDS) -> T | None:
    """The first answer that says yes; None if there is none within `seconds`."""
    until = time.monotonic() + seconds
    while not (found := await look()):
        if time.monotonic() > until:
            return None
        await asyncio.sleep(_POLL_SECONDS)
    return found


async def _done(start: Callable[[], Awaitable[None]]) -> bool:
    try:
        await start()
    except DemoFailed:
        return False
    return True
