"""From the settings to proxies: secrets are read, certificates loaded, and every proxy is made by its kind."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

from rollbook.adapters.proxies.kinds import ProxyConfig
from rollbook.adapters.proxies.registry import find_kind
from rollbook.adapters.secret_ref import SecretRef
from rollbook.adapters.settings import ConfigError, ProxySettings, Settings, read_secret
from rollbook.projections.ports import Proxy


@contextlib.asynccontextmanager
async def open_proxies(
    settings: Settings, *, environ: Mapping[str, str], base: Path
) -> AsyncGenerator[dict[str, Proxy]]:
    """The configured proxies by name; nothing is connected until the first call. `base` is where paths start.

    Raises `ConfigError` for a secret or certificate that is not there, `RollbookError` for what else cannot work.
    """
    async with contextlib.AsyncExitStack() as stack:
        proxies: dict[str, Proxy] = {}
        for proxy in settings.proxies:
            made = find_kind(proxy.kind).make(proxy_config(proxy, settings.fleet, environ=environ, base=base))
            stack.push_async_callback(made.close)
            proxies[proxy.name] = made
        yield proxies


def proxy_config(proxy: ProxySettings, fleet: str, *, environ: Mapping[str, str], base: Path) -> ProxyConfig:
    """What the kind of `proxy` makes it from. Raises as `open_proxies` does."""

    def secret(ref: SecretRef) -> str:
        return read_secret(ref, environ=environ, base=base)

    options = proxy.own_options()
    given = {key: getattr(options, key) for key in options.__struct_fields__}
    return ProxyConfig(
        name=proxy.name,
        fleet=fleet,
        admin_url=proxy.admin_url,
        api_key=None if proxy.api_key is None else secret(proxy.api_key),
        tls=client_tls(proxy, base),
        options=options,
        secrets={key: secret(value) for key, value in given.items() if isinstance(value, SecretRef)},
    )


def client_tls(proxy: ProxySettings, base: Path) -> ssl.SSLContext | None:
    """Whom to trust and what to show where `proxy` is asked over https; None is what Python does by itself.

    Raises `ConfigError` for a file that is not there or not what it should be.
    """
    if proxy.ca is None and proxy.certificate is None:
        return None
    key, file = "ca", base / (proxy.ca or "")
    try:
        context = ssl.create_default_context(cafile=None if proxy.ca is None else file)
        if proxy.certificate is not None:
            key, file = "certificate", base / proxy.certificate
            private = None if proxy.certificate_key is None else base / proxy.certificate_key
            context.load_cert_chain(file, private, password="")  # without one, Python asks on the terminal
    except OSError as exc:
        said = "it is no PEM file of that" if isinstance(exc, ssl.SSLError) else f"it cannot be read ({exc.strerror})"
        raise ConfigError([f"proxy {proxy.name!r}: {key}: {file}: {said}"]) from exc
    return context
