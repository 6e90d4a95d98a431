"""docs/configuration.md, made from the structs and the docstrings under their fields, so that it is always current."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import inspect

from rollbook.adapters.docstrings import field_docstrings, one_line
from rollbook.adapters.proxies.registry import BUILT_IN, find_kind
from rollbook.adapters.secret_ref import SecretRef
from rollbook.adapters.settings.model import (
    LeadershipSettings,
    LogSettings,
    NatsSettings,
    ProxySettings,
    RayActorsProvider,
    RayProvider,
    Settings,
    StaticProvider,
    WebSettings,
)
from rollbook.adapters.settings.shapes import expected, struct_info, without_none
from rollbook.projections.policy import HealthPolicy, PoolPolicy, ReconcilePolicy, RecoveryPolicy, SnapshotPolicy

_SECTIONS: Final[tuple[tuple[str, type[msgspec.Struct]], ...]] = (
    ("The top of the file", Settings),
    ("`[nats]`", NatsSettings),
    ('`[provider]` with `kind = "ray"`', RayProvider),
    ('`[provider]` with `kind = "ray-actors"`', RayActorsProvider),
    ('`[provider]` with `kind = "static"`', StaticProvider),
    ("`[pools.<name>]`", PoolPolicy),
    ("`[pools.<name>.health]`", HealthPolicy),
    ("`[pools.<name>.recovery]`", RecoveryPolicy),
    ("`[[proxies]]`", ProxySettings),
    *(
        (f'`[proxies.options]` with `kind = "{kind.name}"`', kind.options)
        for kind in (find_kind(point.name) for point in BUILT_IN)
        if kind.options.__struct_fields__
    ),
    ("`[reconcile]`", ReconcilePolicy),
    ("`[snapshots]`", SnapshotPolicy),
    ("`[leadership]`", LeadershipSettings),
    ("`[web]`", WebSettings),
    ("`[logs]`", LogSettings),
    ("A secret", SecretRef),
)

_INTRODUCTION: Final = """\
# Configuration

Made from `rollbook.adapters.settings` by `make docs`; the tests check that it is current.

One TOML file says everything: `-c FILE`, or `ROLLBOOK_CONFIG`, or `rollbook.toml` in the current folder, in this order.
`rollbook init` writes a first one, and `rollbook check` validates one without starting anything. Every problem of a
file is reported at once, one line each, with the key, what was found and what to write. An unknown key is an error.

    fleet = "math-rl"

    [nats]                                  # left out: an embedded server starts, on loopback, in .rollbook
    url = "nats://127.0.0.1:4222"

    [provider]
    kind = "ray"

    [pools.rollout]
    url = "http://{primary}"
    ready_path = "/health"

    [[proxies]]
    name = "router-a"
    kind = "sglang"
    admin_url = "http://127.0.0.1:30000"
    pools = ["rollout"]

The folder `.rollbook` beside the file holds the embedded server's store and address; see [operations](operations.md).

## Secrets

A secret stands in the file by reference only: `{ env = "NAME" }` or `{ file = "path" }`. One in clear is an error that
does not repeat it, and so are credentials inside a URL. Secrets are never printed.

## The environment

A variable overrides the file: `ROLLBOOK_` and the key's path in capitals, joined by `_`, every other character as `_`
too. An entry of `[[proxies]]` goes by its name. A list is separated by commas. For a secret the variable holds the
secret itself.

| variable | key |
|---|---|
| `ROLLBOOK_FLEET` | `fleet` |
| `ROLLBOOK_NATS_URL` | `nats.url` |
| `ROLLBOOK_NATS_TOKEN` | `nats.token`, the token itself |
| `ROLLBOOK_RECONCILE_RESYNC` | `reconcile.resync` |
| `ROLLBOOK_POOLS_ROLLOUT_URL` | `pools.rollout.url` |
| `ROLLBOOK_PROXIES_ROUTER_A_ADMIN_URL` | `admin_url` of the proxy named `router-a` |

A variable changes a pool, proxy or worker that the file declares; it declares none. One that overrides nothing is
warned about, with the nearest that would. `up`, `monitor`, `recover`, `stop`, `check`, `reconcile --once` and
`replay --with` need the file; without one, all others find the log by `ROLLBOOK_FLEET` and `ROLLBOOK_NATS_URL`.
`ROLLBOOK_DEBUG=1` shows the traceback of an unexpected failure."""


def page() -> Iterator[str]:
    """`docs/configuration.md`, line by line."""
    yield _INTRODUCTION
    for title, struct in _SECTIONS:
        yield ""
        yield f"## {title}"
        yield ""
        yield one_line(struct.__doc__ or "")
        yield ""
        yield "| key | is | default | |"
        yield "|---|---|---|---|"
        told = field_docstrings(struct)
        for field in struct_info(struct).fields:
            kind = without_none(field.type)
            yield f"| `{field.name}` | {_kind(kind)} | {_default(field, kind)} | {one_line(told[field.name])} |"


def _kind(kind: inspect.Type) -> str:
    if isinstance(kind, inspect.StructType) and kind.cls is SecretRef:
        return "a secret's reference"
    return expected(kind)


def _default(field: inspect.Field, kind: inspect.Type) -> str:
    if field.required:
        return "required"
    if isinstance(kind, inspect.StructType | inspect.DictType) or field.default in (None, ()):
        return ""
    value: Any = field.default
    return f"`{json.dumps(value)}`"


if __name__ == "__main__":
    print("\n".join(page()))  # noqa: T201 - this is the generator of the page
