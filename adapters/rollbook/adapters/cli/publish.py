"""`rollbook publish up|down`: a fact from a script, acknowledged before the command ends."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from rollbook.adapters.cli.common import ConfigFile, load_client_config, parse_timeout, start_logs
from rollbook.adapters.cli.exits import Exit, WaitedTooLong
from rollbook.adapters.cli.output import out
from rollbook.adapters.settings import Client
from rollbook.events import Evidence, RollbookError, validate_name

if TYPE_CHECKING:
    from rollbook.adapters.publisher import Publisher, Receipt, Superseded
    from rollbook.adapters.publisher.life import Identity

EXAMPLE = """\
Example:

    rollbook publish up rollout-3-0
    rollbook publish down rollout-3-0 --evidence exited --reason "out of memory" """

UP_EXAMPLE = """\
Example:

    rollbook publish up rollout-3-0
    rollbook publish up judge --pool reward --cell a --incarnation 4"""

DOWN_EXAMPLE = """\
Example:

    rollbook publish down rollout-3-0
    rollbook publish down rollout-3-0 --incarnation 7 --reason "no answer" """


class OthersWereFaster(RollbookError):
    """The worker's current life was asked for, and something happened to the worker before the fact was stored."""


Worker = Annotated[str, Parameter(help="Its name, such as rollout-3-0.")]
Timeout = Annotated[str, Parameter(help="How long to wait until the log has the fact; a number alone is seconds.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class About:
    """What a worker's name does not say."""

    pool: Annotated[str | None, Parameter(help="Its pool, for a name that is not POOL-CELL-RANK.")] = None
    cell: Annotated[str | None, Parameter(help="Its cell, likewise.")] = None
    rank: Annotated[int | None, Parameter(help="Its rank within the cell, likewise.")] = None
    cell_size: Annotated[int | None, Parameter(help="How many workers live and die with it; by default it alone.")] = (
        None
    )
    cell_incarnation: Annotated[int | None, Parameter(help="The cell's life, for a cell of several workers.")] = None

    def identity(self) -> Identity:
        """The fields of the fact that are given."""
        found: Identity = {}
        if self.pool is not None:
            found["pool"] = self.pool
        if self.cell is not None:
            found["cell"] = self.cell
        if self.rank is not None:
            found["rank"] = self.rank
        if self.cell_size is not None:
            found["cell_size"] = self.cell_size
        if self.cell_incarnation is not None:
            found["cell_incarnation"] = self.cell_incarnation
        return found


def app() -> App:
    """The command with its two subcommands."""
    publish = App(name="publish", help="Publish a fact about a worker, for scripts.", help_epilogue=EXAMPLE)
    publish.command(up, help_epilogue=UP_EXAMPLE)
    publish.command(down, help_epilogue=DOWN_EXAMPLE)
    return publish


def up(
    worker: Worker,
    /,
    *,
    incarnation: Annotated[
        int | None, Parameter(help="Its life; by default a new one, which the log numbers.", validator=Number(gte=1))
    ] = None,
    about: About | None = None,
    timeout: Timeout = "10s",
    config: ConfigFile = None,
) -> int:
    """Say that a worker can serve, and print the fact's sequence in the log.

    Without --incarnation every call begins a new life. Exit code 3 means that the log did not acknowledge in time.
    """
    identity = (about or About()).identity()

    def say(publisher: Publisher, _: float) -> Receipt[int]:
        return publisher.worker_up(worker, incarnation=incarnation, **identity)

    return _publish(worker, say, timeout, config)


def down(
    worker: Worker,
    /,
    *,
    incarnation: Annotated[
        int | None,
        Parameter(help="The life that is over; by default the one current in the log.", validator=Number(gte=1)),
    ] = None,
    evidence: Annotated[Evidence, Parameter(help="How it is known.")] = "operator",
    reason: Annotated[str, Parameter(help="Why, for people.", show_default=False)] = "",
    about: About | None = None,
    timeout: Timeout = "10s",
    config: ConfigFile = None,
) -> int:
    """Say that a worker's life is over, and print the fact's sequence in the log.

    Exit code 3 means that the log did not acknowledge in time.
    """
    identity = (about or About()).identity()

    def say(publisher: Publisher, seconds: float) -> Receipt[int] | Receipt[int | Superseded]:
        if incarnation is not None:
            return publisher.worker_down(worker, incarnation=incarnation, evidence=evidence, reason=reason, **identity)
        with publisher.probe(worker, timeout=seconds, **identity) as probe:
            return probe.down(evidence=evidence, reason=reason)

    return _publish(worker, say, timeout, config)


Say = Callable[["Publisher", float], "Receipt[int] | Receipt[int | Superseded]"]
"""Publishes one fact, waiting at most that many seconds if it has to ask the log first."""


def _publish(worker: str, say: Say, timeout: str, config: ConfigFile) -> int:
    from rollbook.adapters.publisher import Superseded
    from rollbook.projections.ports import LogUnavailable

    validate_name("worker", worker)
    seconds = parse_timeout(timeout)
    client = load_client_config(config)
    start_logs()
    publisher = open_publisher(client)
    try:
        sequence = say(publisher, seconds).result(seconds)
    except (TimeoutError, LogUnavailable) as exc:
        trouble = publisher.stats().last_error
        raise WaitedTooLong(
            f"the log has not acknowledged the fact within {seconds:g} s{f' ({trouble})' if trouble else ''}. It is "
            f"not tried any more, and `rollbook log --worker {worker}` tells whether it arrived; then publish it again"
        ) from exc
    finally:
        publisher.close(0)
    if isinstance(sequence, Superseded):
        raise OthersWereFaster(
            f"something else happened to {worker} meanwhile, at sequence {sequence.sequence}, and nothing was "
            f"published; look at `rollbook log --worker {worker}` and decide again"
        )
    out(str(sequence))
    return Exit.DONE


def open_publisher(client: Client) -> Publisher:
    """A publisher for the fleet and server of the configuration. Raises `NoServer` or `ConfigError`."""
    from rollbook.adapters.bootstrap import nats_connection
    from rollbook.adapters.publisher import Publisher

    connection = nats_connection(client.settings.nats, environ=os.environ, directory=client.directory)
    return Publisher(client.settings.fleet, connection)
