"""The verb `verify`: only whoever knows the configuration knows where clients get into a proxy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rollbook.adapters.service.messages import VERIFY, Reply, VerifyRequest
from rollbook.adapters.service.server import Handler, Progress, Serving, WrongRequest, handler
from rollbook.adapters.service.verbs import chosen
from rollbook.adapters.settings import Settings
from rollbook.adapters.verify import MOST, Ask, Verifier, WrongPath, doors
from rollbook.projections.looking.verification import Verification


def verifying(settings: Settings, *, environ: Mapping[str, str], base: Path) -> Handler:
    """The handler. `environ` and `base` are where secrets are."""

    async def verify(serving: Serving, request: VerifyRequest, _: Progress[Reply]) -> Verification:
        names = chosen(serving, request.proxy)
        if request.requests is not None and not 0 <= request.requests <= MOST:
            raise WrongRequest(f"{request.requests} requests cannot be sent; ask for 0 to {MOST}")
        try:
            ask = Ask(requests=request.requests, path=request.path, model=request.model)
        except WrongPath as exc:
            raise WrongRequest(str(exc)) from exc
        leading = serving.leading
        verifier = Verifier(
            leading.policy,
            lambda: leading.projector.state,
            proxies={proxy.name: proxy for proxy in leading.proxies},
            doors=doors(settings, environ=environ, base=base),
            provider=leading.resources.provider,
            admission=leading.admission,
            clock=leading.resources.clock,
            withheld=leading.withheld,
        )
        return await verifier.verify(names, ask)

    return handler(VERIFY, verify)
