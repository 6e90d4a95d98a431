"""What `rollbook init` finds by itself: routers that answer on loopback, and the Ray that workers here would run on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final

from rollbook.adapters.cli.template import ProxyChoice

PROCESSES: Final = Path("/proc")
"""Where this machine lists its processes; elsewhere than on Linux there is no such folder, and no Ray is found."""

_SECONDS: Final = 2.0
_NO_ADDRESS: Final = {"", "auto", "local"}
"""What RAY_ADDRESS may hold without naming a cluster."""
_CLUSTER: Final = "--gcs-address="


async def find_routers(ports: Sequence[int]) -> list[ProxyChoice]:
    """Every sglang-router and vllm-router that answers on one of these ports of loopback, named after its port."""
    found = await asyncio.gather(*(_kind_at(f"http://127.0.0.1:{port}") for port in ports))
    return [
        ProxyChoice(f"{kind}-{port}", kind, f"http://127.0.0.1:{port}")
        for port, kind in zip(ports, found, strict=True)
        if kind is not None
    ]


async def _kind_at(url: str) -> str | None:
    """By the ways to list: vllm-router has two, most sglang-routers one. Those with two say that they manage others."""
    from rollbook.adapters.proxies.http import AdminHttp
    from rollbook.adapters.proxies.kinds import ProxyConfig
    from rollbook.adapters.proxies.sglang import SglangProxy
    from rollbook.adapters.proxies.vllm import VllmProxy
    from rollbook.projections.ports import ProxyUnavailable

    config = ProxyConfig(name="candidate", admin_url=url, fleet="unknown")
    http, vllm, sglang = AdminHttp(config), VllmProxy(config), SglangProxy(config)
    try:
        async with asyncio.timeout(_SECONDS):
            both = (await http.call("GET", "/list_workers")).status == HTTPStatus.OK
            if both and b"router_manager" not in (await http.call("GET", "/get_server_info")).body:
                with contextlib.suppress(ProxyUnavailable):
                    await vllm.list()
                    return "vllm"
            await sglang.list()
    except (ProxyUnavailable, TimeoutError):
        return None
    finally:
        for one in (http, vllm, sglang):
            await one.close()
    return "sglang"


def find_ray(environ: Mapping[str, str], processes: Path) -> tuple[str, ...]:
    """The address in RAY_ADDRESS; without it, those of all clusters that have a node on this machine.

    Ray is neither imported nor joined: both take seconds. A node is known by its raylet process, whose command line
    names its cluster; Ray itself finds clusters that way too.
    """
    told = environ.get("RAY_ADDRESS", "")
    if told not in _NO_ADDRESS:
        return (told,)
    return tuple(sorted({found for file in processes.glob("[0-9]*/cmdline") if (found := _cluster(file)) is not None}))


def _cluster(cmdline: Path) -> str | None:
    """The address of its cluster, if this is the command line of a raylet."""
    try:
        program, *arguments = cmdline.read_bytes().decode(errors="replace").split("\0")
    except OSError:  # it has ended, or is not ours to look at
        return None
    if Path(program).name != "raylet":
        return None
    return next((a.removeprefix(_CLUSTER) for a in arguments if a.startswith(_CLUSTER)), None)
