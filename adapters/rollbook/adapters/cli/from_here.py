"""Asking proxies, provider and workers from here, with the configuration: for commands that find no controller."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rollbook.adapters.settings import Config
    from rollbook.events import RollbookError
    from rollbook.projections.lanes.admission import Admission
    from rollbook.projections.policy import Policy
    from rollbook.projections.ports import Proxy, WorkerProvider
    from rollbook.projections.state.fold import State


class Workers(NamedTuple):
    """Who knows where they are, and the gates that ask it."""

    provider: WorkerProvider
    admission: Admission


class Here(NamedTuple):
    """All that can be asked."""

    policy: Policy
    proxies: Mapping[str, Proxy]
    workers: Workers | RollbookError
    """Or why there is no provider: nobody knows then where newcomers are."""


@contextlib.asynccontextmanager
async def from_here(config: Config, state: State) -> AsyncGenerator[Here]:
    """Open everything that the configuration names. Raises `ConfigError` for secrets that are not there."""
    from rollbook.adapters.bootstrap import NoProvider, open_provider, open_readiness
    from rollbook.adapters.proxies.opening import open_proxies
    from rollbook.projections.lanes.admission import Admission
    from rollbook.projections.ports import ProviderError

    policy = config.settings.policy()
    async with contextlib.AsyncExitStack() as stack:
        opened = open_proxies(config.settings, environ=os.environ, base=config.file.parent)
        proxies = await stack.enter_async_context(opened)
        readiness = await stack.enter_async_context(open_readiness())
        workers: Workers | RollbookError
        try:
            provider = await stack.enter_async_context(open_provider(config.settings, config.file.parent))
            workers = Workers(provider, Admission(policy, lambda: state.roster, provider, readiness))
        except (NoProvider, ProviderError) as exc:
            workers = exc
        yield Here(policy, proxies, workers)
