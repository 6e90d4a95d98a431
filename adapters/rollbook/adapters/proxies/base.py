"""What every kind whose admin API is HTTP has in common; a kind of one's own may begin with it too."""

from __future__ import annotations

from typing import ClassVar

from rollbook.adapters.proxies.http import AdminHttp
from rollbook.adapters.proxies.kinds import ProxyConfig
from rollbook.adapters.proxies.urls import canonical_url
from rollbook.projections.ports import Answer, Entry, Pending, Unsupported


class HttpProxy:
    """The part of `ports.Proxy` that is alike for all of them, for a router that cannot drain and makes no promises.

    A kind adds `kind`, `capabilities`, `no_drain`, `list`, `add` and `remove`; one that drains or promises also says
    how.
    """

    no_drain: ClassVar[str]
    """Why there is no draining, in words for people."""

    def __init__(self, config: ProxyConfig) -> None:
        self.name = config.name
        self._http = AdminHttp(config)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self._http!r})"

    def canonical_url(self, url: str) -> str:
        """Routers keep a URL as the text that they were told; so they are told, and read, its canonical spelling.

        Raises `UnusableURL`.
        """
        return canonical_url(url)

    async def drain(self, entry: Entry) -> Answer:
        """Not offered, and nothing is sent."""
        return Unsupported(self.no_drain)

    async def outcome(self, pending: Pending) -> Answer:
        """Nothing is ever pending where an add is done when it is answered."""
        return pending

    async def close(self) -> None:
        """Let go of connections."""
        await self._http.close()
