"""What these credentials may do on NATS, found out by trying, without doing it.

Every try is refused for another reason if the permission is there: a fact that expects to be stored in a stream that it
is not for, a request whose body is not one. So nothing is written, whatever the answer.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
import nats.errors

from rollbook.adapters.doctor.findings import Findings
from rollbook.adapters.jetstream.client import Client, NotPermitted
from rollbook.adapters.service.messages import SUBJECT_PREFIX
from rollbook.projections.ports import LogUnavailable

TRY_SECONDS: Final = 3.0
_NOWHERE: Final = {"Nats-Expected-Stream": "rollbook-doctor"}
"""No stream has that name, so none stores a message with this header."""
_BODY: Final = b'"rollbook doctor"'
"""Valid JSON, and no request of JetStream's API: it answers that, and does nothing."""


class Try(msgspec.Struct, frozen=True):
    """One subject, and how to ask whether it may be published to."""

    subject: str
    fact: bool = False
    """Whether a stream takes it."""


def tries(fleet: str) -> dict[str, tuple[Try, ...]]:
    """By what somebody may want to do: all that it takes, beside what it takes to read."""
    log, leases, snapshots = f"ROLLBOOK_{fleet}", f"ROLLBOOK_{fleet}_leader", f"ROLLBOOK_{fleet}_snapshots"
    facts = f"rollbook.{fleet}"
    return {
        "read the log": (
            Try(f"$JS.API.STREAM.INFO.{log}"),
            Try(f"$JS.API.STREAM.MSG.GET.{log}"),
            Try(f"$JS.API.DIRECT.GET.{log}"),
        ),
        "publish worker facts": (Try(f"{facts}.worker.doctor", fact=True),),
        "publish fleet facts": (Try(f"{facts}.fleet", fact=True),),
        "decide": (
            Try(f"{facts}.operator.worker.doctor", fact=True),
            Try(f"{facts}.operator.proxy.doctor", fact=True),
            Try(f"{facts}.operator.fleet", fact=True),
        ),
        "ask the controller": (Try(f"{SUBJECT_PREFIX}.{fleet}.info"),),
        "command the controller": (Try(f"{SUBJECT_PREFIX}.{fleet}.doctor"),),
        "control": (
            Try(f"{facts}.proxy.doctor", fact=True),
            Try(f"{facts}.quarantine", fact=True),
            Try(f"$KV.{leases}.doctor", fact=True),
            Try(f"$O.{snapshots}.M.doctor", fact=True),
            Try(f"$JS.API.STREAM.CREATE.{log}"),
            Try(f"$JS.API.STREAM.UPDATE.{log}"),
            Try(f"$JS.API.CONSUMER.CREATE.{log}.doctor"),
            Try(f"$JS.API.CONSUMER.DELETE.{log}.doctor"),
            Try(f"$JS.API.STREAM.CREATE.KV_{leases}"),
            Try(f"$JS.API.STREAM.CREATE.OBJ_{snapshots}"),
        ),
    }


async def permissions(findings: Findings, client: Client, fleet: str) -> None:
    """Try everything, and say what may be done. What may be done in part is a mistake in the permissions."""
    may: list[str] = []
    may_not: list[str] = []
    partly: dict[str, list[str]] = {}
    for what, needed in tries(fleet).items():
        refused = [one.subject for one in needed if not await _permitted(client, one)]
        if not refused:
            may.append(what)
        elif len(refused) == len(needed):
            may_not.append(what)
        else:
            partly[what] = refused
    told = f"these credentials may {_listed(may)}" + (f", and not {_listed(may_not)}" if may_not else "")
    if partly:
        lacking = "; ".join(f"to {what}: {', '.join(refused)}" for what, refused in partly.items())
        told = f"{told}; what is missing {lacking}"
        findings.failed("permissions", told, "permit these subjects, as deploy/nats-roles.conf does for each role")
    elif "read the log" in may_not:
        fix = "give this program a role's credentials: docs/permissions.md"
        findings.failed("permissions", told, fix)
    else:
        findings.ok("permissions", told)


def _listed(words: list[str]) -> str:
    return " or ".join(", ".join(words).rsplit(", ", 1)) if words else "do nothing"


async def _permitted(client: Client, one: Try) -> bool:
    try:
        await client.ask(one.subject, _BODY, headers=_NOWHERE if one.fact else None, timeout=TRY_SECONDS)
    except NotPermitted:
        return False
    except LogUnavailable as exc:
        # A service or a stream that is not there yet: the server let it through.
        return isinstance(exc.__cause__, (nats.errors.NoRespondersError, asyncio.TimeoutError))
    return True
