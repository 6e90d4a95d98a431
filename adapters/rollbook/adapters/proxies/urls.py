"""Canonical URLs: one spelling for one address.

Routers compare URLs as text. A trailing slash, a capital letter or a default port makes a second worker out of the
first; sglang-router even accepts such an entry and never finds it healthy. So every URL takes this spelling before it
is sent, and after it is read.
"""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv6Address
from typing import Final
from urllib.parse import urlsplit

from rollbook.events import RollbookError

DEFAULT_PORTS: Final = {"http": 80, "https": 443, "grpc": None}
"""The schemes that a worker can have, each with the port that goes without saying."""

_HOST: Final = re.compile(r"[a-z0-9_]([a-z0-9._-]*[a-z0-9_.])?")
_NOT_URL: Final = re.compile(r"[^\x21-\x7e]")


class UnusableURL(RollbookError, ValueError):
    """A text that cannot be the URL of a server. The message repeats it without any credentials."""


def canonical_url(url: str) -> str:
    """The one spelling of `url`: lower-case scheme and host, no default port, no trailing slash; the path is kept.

    `canonical_url(canonical_url(url)) == canonical_url(url)`. Raises `UnusableURL` (a `ValueError`) for a missing or
    unknown scheme, credentials, a query, a fragment, or a host or port that cannot be one. Nothing is guessed: a URL
    without a scheme is refused rather than completed.
    """
    if _NOT_URL.search(url):
        raise _unusable(url, "a URL has no spaces, control characters or letters outside ASCII")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise _unusable(url, str(exc)) from exc
    if "://" not in url or parts.scheme not in DEFAULT_PORTS:
        raise _unusable(url, f"it must begin with {' or '.join(f'{scheme}://' for scheme in DEFAULT_PORTS)}")
    if "@" in parts.netloc:
        raise _unusable(url, "credentials do not belong in it")
    if parts.query or parts.fragment:
        raise _unusable(url, "a query or a fragment has no meaning here")
    if port == 0:
        raise _unusable(url, "nothing listens on port 0")
    host = _host(url, parts.hostname or "", in_brackets=parts.netloc.startswith("["))
    shown_port = "" if port is None or port == DEFAULT_PORTS[parts.scheme] else f":{port}"
    return f"{parts.scheme}://{host}{shown_port}{parts.path.rstrip('/')}"


def _host(url: str, host: str, *, in_brackets: bool) -> str:
    if in_brackets:
        try:
            address = IPv6Address(host)
        except AddressValueError as exc:
            raise _unusable(url, f"{host!r} is not an IPv6 address") from exc
        if address.scope_id is not None:
            raise _unusable(url, "an IPv6 address with a zone means something else on every machine")
        if (mapped := address.ipv4_mapped) is not None:
            # As routers write it, and Python did before 3.13.
            return f"[::ffff:{int(mapped) >> 16:x}:{int(mapped) & 0xFFFF:x}]"
        return f"[{address.compressed}]"
    if not _HOST.fullmatch(host):
        raise _unusable(url, f"{host!r} is not a host")
    return host


def _unusable(url: str, why: str) -> UnusableURL:
    before, at, after = url.rpartition("@")
    shown = f"***{at}{after[:200]}" if before else url[:200]
    return UnusableURL(f"{shown!r} is not the URL of a server: {why}; write it as http://host:port")
