"""The text of a first `rollbook.toml`, with a comment wherever a newcomer has to decide something."""

from __future__ import annotations

import json
from typing import Any, Literal

import msgspec

Source = Literal["ray", "ray-actors", "static"]
"""The kinds of provider."""

_BY_REFERENCE = '# token = { env = "NATS_TOKEN" }  # secrets stand here by reference only\n'


class ProxyChoice(msgspec.Struct, frozen=True):
    """A router to write down."""

    name: str
    kind: str
    url: str
    options: dict[str, Any] = {}
    """Strings, numbers and booleans."""


class Choices(msgspec.Struct, frozen=True, kw_only=True):
    """All that goes into the file."""

    fleet: str
    provider: Source
    actor: str | None = None
    """How the workers' actors are named, with the provider `ray-actors`."""
    ray: tuple[str, ...]
    """Where Ray was found."""
    nats_url: str | None
    pools: tuple[str, ...]
    proxies: tuple[ProxyChoice, ...]
    workers: dict[str, str]
    workers_file: str | None = None
    """Instead of `workers`."""


def render(choices: Choices) -> str:
    """The file. Strings are written as JSON strings, which TOML reads the same way."""
    parts = [
        "# The controller's configuration. docs/configuration.md explains every key; `rollbook check` validates.\n\n",
        "# One training run's or deployment's set of workers; names the stream in NATS.\n",
        f"fleet = {_string(choices.fleet)}\n\n",
        _nats(choices.nats_url),
        _provider(choices),
        *(_pool(name, served=bool(choices.proxies)) for name in choices.pools),
        *(_proxy(proxy, choices.pools) for proxy in choices.proxies),
    ]
    if not choices.proxies:
        parts.append(_PROXY_EXAMPLE.format(pools=_strings(choices.pools)))
    return "".join(parts)


def _nats(url: str | None) -> str:
    if url is None:
        return (
            "# The server that holds the log. Left out, `rollbook up` starts one on loopback, with its store in\n"
            "# .rollbook beside this file: right for one machine. Workers elsewhere need a server that they reach.\n"
            f'# [nats]\n# url = "nats://host:4222"\n{_BY_REFERENCE}\n'
        )
    return f"# The server that holds the log.\n[nats]\nurl = {_string(url)}\n{_BY_REFERENCE}\n"


def _provider(choices: Choices) -> str:
    found = f"; found: {', '.join(_string(address) for address in choices.ray)}" if choices.ray else ""
    cluster = f'# address = "auto"  # by default RAY_ADDRESS, or the cluster of this machine{found}\n\n'
    if choices.provider == "ray":
        manager = _string(f"rollbook-{choices.fleet}")
        return (
            "# Who knows where the workers are: the Ray manager actor, asked anew at every registration.\n"
            '[provider]\nkind = "ray"                    # "ray-actors": actors that a framework starts itself;\n'
            '                                # "static": the addresses stand in this file, or in one of their own\n'
            f"# manager = {manager}  # the default holds the fleet's name\n{cluster}"
        )
    if choices.provider == "ray-actors":
        return (
            "# Who knows where the workers are: each worker's own Ray actor, asked anew at every registration.\n"
            f'[provider]\nkind = "ray-actors"\nactor = {_string(choices.actor or "")}'
            "  # {worker} stands for the worker's name\n"
            'method = "get_addr"             # answers host:port, a URL, or several by name with "primary" among them\n'
            f'# namespace = "..."  # by default all are looked through\n{cluster}'
        )
    if choices.workers_file is not None:
        return (
            "# Who knows where the workers are: a file of its own, read anew at every look-up.\n[provider]\n"
            f'kind = "static"\nfile = {_string(choices.workers_file)}'
            '  # [workers.<worker>] with primary = "host:port"\n\n'
        )
    workers = "".join(
        f"[provider.workers.{_key(name)}]\nprimary = {_string(address)}\n\n"
        for name, address in choices.workers.items()
    )
    return (
        "# Who knows where the workers are: this file.\n[provider]\n"
        'kind = "static"                 # "ray": a Ray manager actor is asked, anew at every registration\n\n'
        f"{workers or _WORKER_EXAMPLE}"
    )


def _pool(name: str, *, served: bool) -> str:
    required = (
        "requires_proxy = true           # starting fails, and says so, if no proxy serves this pool\n"
        if served
        else "requires_proxy = false          # no proxy serves it yet; true makes starting without one fail\n"
    )
    return (
        f"# Workers of one kind and configuration, such as {name}-0-0.\n[pools.{_key(name)}]\n{required}"
        'url = "http://{primary}"        # what is registered, from the worker\'s named addresses\n'
        'ready_path = "/health"          # must answer 200 before a worker is added; "" asks nothing\n\n'
    )


def _proxy(proxy: ProxyChoice, pools: tuple[str, ...]) -> str:
    options = [f"{_key(key)} = {json.dumps(value)}\n" for key, value in proxy.options.items()]
    return (
        "# A router in front of the workers.\n"
        f"[[proxies]]\nname = {_string(proxy.name)}\nkind = {_string(proxy.kind)}\nadmin_url = {_string(proxy.url)}\n"
        f"pools = {_strings(pools)}\n"
        f"{_KEY_EXAMPLE if proxy.url.startswith('http') else ''}"
        + "".join(["[proxies.options]\n", *options] if options else [])
        + "\n"
    )


_KEY_EXAMPLE = '# api_key = { env = "ROUTER_KEY" }\n'

_WORKER_EXAMPLE = """\
# [provider.workers.rollout-0-0]
# primary = "host:port"

"""

_PROXY_EXAMPLE = """\
# A router in front of the workers. There is no default address.
# [[proxies]]
# name = "router-a"
# kind = "sglang"
# admin_url = "http://host:port"
# pools = {pools}
"""


def _string(text: str) -> str:
    return json.dumps(text)


def _strings(texts: tuple[str, ...]) -> str:
    return f"[{', '.join(_string(text) for text in texts)}]"


def _key(name: str) -> str:
    return name if name and all(c.isascii() and (c.isalnum() or c in "-_") for c in name) else _string(name)
