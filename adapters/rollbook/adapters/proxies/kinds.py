"""What a kind of proxy is, and what one proxy of it is made from.

This is all that a package with a kind of its own builds on, beside the port `rollbook.projections.ports.Proxy` and
`HttpProxy` for APIs over HTTP: docs/proxies/own-kind.md has a complete example.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping

import msgspec

from rollbook.projections.ports import Proxy


class NoOptions(msgspec.Struct, frozen=True):
    """This kind has no options."""


class ProxyConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one proxy is made from: its settings, with every secret read. Shows none of them."""

    name: str
    """Its name in the configuration."""
    fleet: str
    """Whose entries are ours."""
    admin_url: str
    """With one of the kind's schemes."""
    api_key: str | None = None
    """The key that its admin API asks for."""
    tls: ssl.SSLContext | None = None
    """Whom to trust and what to show on https; None trusts the machine's authorities."""
    options: msgspec.Struct = NoOptions()
    """An instance of the kind's `options`."""
    secrets: Mapping[str, str] = {}
    """The options that are a secret's reference, by name, each with the secret itself."""

    def __repr__(self) -> str:
        return f"ProxyConfig({self.name!r}, {self.admin_url!r}, fleet={self.fleet!r})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        return [("name", self.name), ("admin_url", self.admin_url)]


class ProxyKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of proxy, as the configuration names it."""

    name: str
    """What stands in `kind`; a package's entry point has the same name."""
    make: Callable[[ProxyConfig], Proxy]
    """A proxy of this kind. Connects to nothing. Raises `RollbookError` for what cannot work."""
    options: type[msgspec.Struct] = NoOptions
    """What can stand in `[proxies.options]`: a frozen struct of strings, numbers, booleans, literals, tuples of
    strings, tables of strings and `SecretRef`. Its `__post_init__` may raise `ValueError`."""
    schemes: tuple[str, ...] = ("http", "https")
    """What an `admin_url` may begin with. `unix` means the path of a socket, `tcp` a host and a port and no more."""
    example: str = "http://host:port"
    """An `admin_url`, for people who left it out or got it wrong."""
    serves_clients: bool = True
    """Whether clients send their requests to `admin_url` too, so that `data_url` may be left out."""
    roles: bool = False
    """Whether it tells prefill and decode workers apart."""
    model: bool = False
    """Whether it is told the model of a pool."""
    bootstrap: bool = False
    """Whether it must be told where decode workers fetch from a prefill worker."""
