"""The program `rollbook`: its commands, and what becomes of whatever goes wrong in them.

To add a command: write `cli/<command>.py` with a function and its `EXAMPLE`, and register it in `_commands`.
A command returns an exit code (None counts as 0) and raises `RollbookError` with a sentence for the person.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from cyclopts import App, CycloptsError

from rollbook.adapters.cli import (
    check,
    demo,
    demo_worker,
    doctor,
    init,
    log,
    looking_back,
    monitor,
    operator,
    plan,
    publish,
    reconcile,
    recover,
    status,
    up,
    verify,
    wait,
)
from rollbook.adapters.cli.exits import Exit, OutputClosed, UsageError, WaitedTooLong
from rollbook.adapters.cli.output import close_output, forget_output, prepare_streams, say
from rollbook.adapters.settings import ConfigError
from rollbook.events import InvalidFact, InvalidName, RollbookError

_HELP = "Keeps the register of a fleet of rollout workers, and every proxy true to it."
_EPILOGUE = """\
Example:

    rollbook init --fleet math-rl --proxy router-a=sglang@http://127.0.0.1:30000
    rollbook up
    rollbook status

Exit codes: 0 done or nothing to do, 2 differences or drift, 3 timed out waiting, 64 wrong usage or configuration,
1 anything else."""


def _version() -> str:
    try:
        return version("rollbook")
    except PackageNotFoundError:
        return "unknown: rollbook is run from its sources without being installed"


def _commands() -> App:
    commands = App(
        name="rollbook",
        help=_HELP,
        help_epilogue=_EPILOGUE,
        help_format="markdown",
        help_flags=["--help", "-h"],
        version=_version,
        suppress_keyboard_interrupt=False,
    )
    commands.command(init.init, help_epilogue=init.EXAMPLE)
    commands.command(check.check, help_epilogue=check.EXAMPLE)
    commands.command(up.up, help_epilogue=up.EXAMPLE)
    commands.command(monitor.monitor, help_epilogue=monitor.EXAMPLE)
    commands.command(recover.recover, help_epilogue=recover.EXAMPLE)
    commands.command(recover.stop, help_epilogue=recover.STOP_EXAMPLE)
    commands.command(recover.start, help_epilogue=recover.START_EXAMPLE)
    commands.command(status.status, help_epilogue=status.EXAMPLE)
    commands.command(plan.plan, help_epilogue=plan.EXAMPLE)
    commands.command(reconcile.reconcile, help_epilogue=reconcile.EXAMPLE)
    commands.command(verify.verify, help_epilogue=verify.EXAMPLE)
    commands.command(wait.wait, help_epilogue=wait.EXAMPLE)
    operator.register(commands)
    commands.command(doctor.doctor, help_epilogue=doctor.EXAMPLE)
    commands.command(log.log, help_epilogue=log.EXAMPLE)
    looking_back.register(commands)
    commands.command(publish.app())
    commands.command(demo.demo, help_epilogue=demo.EXAMPLE)
    commands.command(demo_worker.demo_worker, help_epilogue=demo_worker.EXAMPLE, show=False)
    return commands


app = _commands()


def main() -> None:
    """The console script: run the command of `sys.argv`, and exit with its code."""
    prepare_streams()
    sys.exit(run(sys.argv[1:], os.environ))


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one command and return its exit code. Never raises for what a user or the network does."""
    try:
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        close_output()
    except OutputClosed:
        forget_output()
        return Exit.DONE
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except CycloptsError as exc:
        return _wrong_usage(exc)
    except Exception as exc:  # noqa: BLE001 - the last resort of the program: told to the person, with an exit code
        return _failed(exc, environ)
    return Exit.DONE if code is None else int(code)


def _wrong_usage(exc: CycloptsError) -> int:
    chain = " ".join(("rollbook", *(exc.command_chain or ())))
    say(f"rollbook: {exc}")
    say(f"rollbook: see `{chain} --help`")
    return Exit.USAGE


def _failed(exc: Exception, environ: Mapping[str, str]) -> int:
    from rollbook.adapters.logs import redact_text

    if environ.get("ROLLBOOK_DEBUG"):
        say(redact_text("".join(traceback.format_exception(exc))).rstrip())
    known = _known(exc)
    if known is None and isinstance(exc, OSError):
        say(f"rollbook: {redact_text(str(exc))}")
        return Exit.FAILED
    if known is None:
        what = redact_text(f"{type(exc).__name__}: {exc}".splitlines()[0])
        say(f"rollbook: unexpected failure: {what}")
        say("rollbook: this is a defect of Rollbook; run it again with ROLLBOOK_DEBUG=1 to see where, and report it")
        return Exit.FAILED
    for line in redact_text(str(known)).splitlines():
        say(f"rollbook: {line}")
    match known:
        case ConfigError() | UsageError() | InvalidName() | InvalidFact():
            return Exit.USAGE
        case WaitedTooLong():
            return Exit.WAITED
        case _:
            return Exit.FAILED


def _known(exc: BaseException) -> RollbookError | None:
    """The first of our own errors in what was raised, which may be a task group's."""
    if isinstance(exc, RollbookError):
        return exc
    if isinstance(exc, BaseExceptionGroup):
        inner = [_known(one) for one in exc.exceptions]
        return inner[0] if all(inner) else None
    return None


if __name__ == "__main__":
    main()
