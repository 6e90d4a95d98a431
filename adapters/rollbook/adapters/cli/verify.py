"""`rollbook verify`: the read-back, and real requests through the proxies, saying who answered them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter
from cyclopts.validators import Number

from rollbook.adapters.cli.common import ConfigFile, Found, Json, ProxyName, load_what_is_there, run, start_logs
from rollbook.adapters.cli.exits import Exit, UsageError
from rollbook.adapters.cli.output import LONGEST_SHOWN, Piece, one_line, out_document, say
from rollbook.adapters.cli.table import table

if TYPE_CHECKING:
    from rollbook.adapters.bootstrap import Reader
    from rollbook.adapters.service.messages import VerifyRequest
    from rollbook.adapters.settings import Config
    from rollbook.projections.looking.verification import Answerer, ProxyVerification, Verification

EXAMPLE = """\
Example:

    rollbook verify
    rollbook verify --proxy router-a --requests 50
    rollbook verify --requests 0

Exit codes: 0 all is right, 2 drift, or somebody answered who should not,
1 a proxy or a request failed, or anything else."""

DEADLINE_SECONDS: Final = 600.0
_STYLES: Final = {"right": "green", "unknown": "yellow", "dead": "bold red", "foreign": "bold red", "unwanted": "red"}


def verify(
    *,
    proxy: ProxyName = None,
    requests: Annotated[
        int | None,
        Parameter(
            help="Requests through each proxy; by default three for each listed worker, and 8 at the least. "
            "0 sends none.",
            validator=Number(gte=0, lte=1000),
        ),
    ] = None,
    path: Annotated[
        str | None, Parameter(help="Where they go; by default /generate or /v1/chat/completions, by the proxy's kind.")
    ] = None,
    model: Annotated[
        str | None, Parameter(help="Which model they ask for; by default the pool's, or the first that is served.")
    ] = None,
    json: Json = False,
    config: ConfigFile = None,
) -> Exit:
    """Read every proxy back, send requests of one token through it, and say which workers answered.

    The controller does it if one runs; otherwise it is done from here, with the configuration.
    """
    from rollbook.adapters.service.messages import VerifyRequest
    from rollbook.adapters.verify import Ask, WrongPath

    try:
        Ask(path=path)
    except WrongPath as exc:
        raise UsageError(f"--path: {exc}") from exc
    found = load_what_is_there(config)
    start_logs()
    request = VerifyRequest(proxy=proxy, requests=requests, path=path, model=model, deadline_seconds=DEADLINE_SECONDS)
    verification = run(_verify(found, request))
    out_document(verification, render(verification), json=json)
    for note in verification.notes:
        say(f"rollbook: {note}")
    return verdict(verification)


def verdict(verification: Verification) -> Exit:
    """A proxy that does what it should not is the worse finding; one that cannot be tried comes next."""
    if any(one.differs for one in verification.proxies):
        return Exit.DIFFERENCES
    return Exit.FAILED if any(one.broken for one in verification.proxies) else Exit.DONE


async def _verify(found: Found, request: VerifyRequest) -> Verification:
    from rollbook.adapters.cli.asking import ask_if_there, open_found
    from rollbook.adapters.service.messages import VERIFY

    async with open_found(found) as reader:
        answer = await ask_if_there(reader, found.client.settings.fleet, VERIFY, request)
        if answer is not None:
            return answer
        if found.config is None:
            raise UsageError("no controller answers, and no configuration is here: nobody knows where the proxies are")
        return await _from_here(found.config, reader, request)


async def _from_here(config: Config, reader: Reader, request: VerifyRequest) -> Verification:
    from rollbook.adapters.cli.asking import check_proxy, state_of
    from rollbook.adapters.cli.from_here import Workers, from_here
    from rollbook.adapters.verify import Ask, Verifier, doors

    settings = config.settings
    check_proxy(settings.policy(), request.proxy)
    state = await state_of(reader, settings.fleet)
    notes = ["no controller answered: the proxies were verified from here"]
    async with from_here(config, state) as here:
        workers = here.workers if isinstance(here.workers, Workers) else None
        if workers is None:
            notes.append(f"where newcomers are, and how workers say who they are, is unknown: {here.workers}")
        verifier = Verifier(
            here.policy,
            lambda: state,
            proxies=here.proxies,
            doors=doors(settings, environ=os.environ, base=config.file.parent),
            provider=None if workers is None else workers.provider,
            admission=None if workers is None else workers.admission,
            clock=reader.clock,
        )
        names = list(here.proxies) if request.proxy is None else [request.proxy]
        ask = Ask(requests=request.requests, path=request.path, model=request.model)
        return await verifier.verify(names, ask, tuple(notes))


def render(verification: Verification) -> Iterator[list[Piece]]:
    """For each proxy what it lists, what is wrong with that, and who answered."""
    for number, one in enumerate(verification.proxies):
        if number:
            yield []
        yield from _proxy(one)


def _proxy(one: ProxyVerification) -> Iterator[list[Piece]]:
    from rollbook.adapters.cli.plan import row

    head: list[Piece] = [(one.proxy, "bold"), f" ({one.kind}): "]
    if one.unreachable is not None:
        yield [*head, (f"NOT READ BACK: {one_line(one.unreachable, LONGEST_SHOWN)}", "bold red")]
        return
    read: Piece = ("as they should be", "green") if not one.drift else (f"DRIFT in {len(one.drift)}", "bold red")
    yield [*head, f"lists {one.listed}, ", read]
    yield from table([row(line) for line in one.drift], head=False)
    if one.url is not None:
        answered = sum(answerer.requests for answerer in one.answered)
        yield [f"{answered} of {one.sent} requests to {one.url} were answered"]
        yield from table([_answerer(answerer) for answerer in one.answered], head=False)
    for reason, count in one.failed.items():
        yield [(f"{count} failed: {one_line(reason, LONGEST_SHOWN)}", "bold red")]
    for note in one.notes:
        yield [(one_line(note), "dim")]


def _answerer(one: Answerer) -> Sequence[Piece]:
    life = "" if one.incarnation is None else f" #{one.incarnation}"
    who = one_line(f"{one.worker}{life}", LONGEST_SHOWN) if one.worker is not None else "somebody"
    why = f": {one_line(one.reason, LONGEST_SHOWN)}" if one.reason else ""
    return [f"  {who}", str(one.requests), one.how, (f"{one.verdict}{why}", _STYLES[one.verdict])]
