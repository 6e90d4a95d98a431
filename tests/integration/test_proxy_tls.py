"""Admin APIs over https, below a path, as the settings say: a private authority, a client's certificate, a prefix."""

from __future__ import annotations

import ssl
from contextlib import asynccontextmanager

import pytest
import trustme
from aiohttp import web
from support.small_routers import MilesRouter, small_router

from rollbook.adapters.proxies.opening import open_proxies
from rollbook.adapters.settings import ConfigError, ProxySettings, RayProvider, SecretRef, Settings
from rollbook.projections.ports import ProxyUnavailable

AUTHORITY = trustme.CA()
ANOTHER = trustme.CA()


@asynccontextmanager
async def router(*, client: trustme.CA | None = None, prefix: str = ""):
    """A router with no workers behind https on localhost; `client`: whose certificates it asks for."""

    async def listing(_: web.Request) -> web.Response:
        return web.json_response({"workers": [], "total": 0, "stats": {}})

    app = web.Application()
    app.router.add_get(f"{prefix}/workers", listing)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    AUTHORITY.issue_cert("localhost").configure_cert(context)
    if client is not None:
        client.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        yield f"https://localhost:{runner.addresses[0][1]}{prefix}"
    finally:
        await runner.cleanup()


@pytest.fixture
def folder(tmp_path):
    AUTHORITY.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    ANOTHER.cert_pem.write_to_path(str(tmp_path / "another.pem"))
    mine = AUTHORITY.issue_cert("controller@example.org")
    mine.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "both.pem"))
    mine.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    mine.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    (tmp_path / "garbage.pem").write_text("garbage")
    return tmp_path


def settings(url: str, **more) -> Settings:
    proxy = ProxySettings(name="router-a", kind="sglang", admin_url=url, pools=("rollout",), **more)
    return Settings(fleet="math-rl", provider=RayProvider(), proxies=(proxy,))


async def listed(folder, url: str, **more) -> tuple[object, ...]:
    async with open_proxies(settings(url, **more), environ={}, base=folder) as proxies:
        return (await proxies["router-a"].list()).entries


async def test_a_private_authority_is_trusted_if_it_is_named(folder):
    async with router() as url:
        assert await listed(folder, url, ca="ca.pem") == ()


@pytest.mark.parametrize("ca", [None, "another.pem"])
async def test_a_certificate_of_an_unknown_authority_ends_the_call(folder, ca):
    async with router() as url:
        with pytest.raises(ProxyUnavailable, match=r"not trusted: unable to get local issuer .*named in ca\?$"):
            await listed(folder, url, ca=ca)


async def test_a_certificate_for_another_host_ends_the_call(folder):
    async with router() as url:
        with pytest.raises(ProxyUnavailable, match="IP address mismatch"):
            await listed(folder, url.replace("localhost", "127.0.0.1"), ca="ca.pem")


async def test_https_to_a_server_without_it_says_so(folder):
    async with small_router(MilesRouter) as plain:
        with pytest.raises(ProxyUnavailable, match="failed: TLS: "):
            await listed(folder, plain.url.replace("http:", "https:"))


@pytest.mark.parametrize(
    "given", [{"certificate": "both.pem"}, {"certificate": "cert.pem", "certificate_key": "key.pem"}]
)
async def test_a_certificate_is_shown_where_one_is_asked_for(folder, given):
    async with router(client=AUTHORITY) as url:
        assert await listed(folder, url, ca="ca.pem", **given) == ()
        with pytest.raises(ProxyUnavailable):
            await listed(folder, url, ca="ca.pem")


async def test_the_path_of_the_admin_url_comes_before_the_apis_own(folder):
    async with router(prefix="/fleet-a/admin") as url:
        assert await listed(folder, url, ca="ca.pem") == ()
        with pytest.raises(ProxyUnavailable, match="404"):
            await listed(folder, url.removesuffix("/admin"), ca="ca.pem")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"ca": "none.pem"}, r"proxy 'router-a': ca: .*none\.pem: it cannot be read \(No such file or directory\)"),
        ({"ca": "garbage.pem"}, r"ca: .*garbage\.pem: it is no PEM file of that"),
        ({"certificate": "none.pem"}, r"certificate: .*none\.pem: it cannot be read"),
        ({"certificate": "cert.pem"}, r"certificate: .*cert\.pem: it is no PEM file of that"),
        ({"certificate": "cert.pem", "certificate_key": "none.pem"}, "certificate: .*it cannot be read"),
        ({"certificate": "cert.pem", "certificate_key": "locked.pem"}, "certificate: .*it is no PEM file of that"),
        ({"api_key": SecretRef(env="NOWHERE")}, "NOWHERE is not set"),
    ],
)
async def test_a_file_that_cannot_be_used_is_named_before_anything_is_called(folder, given, expected):
    """An encrypted key must not make Python ask for its password on the terminal."""
    from cryptography.hazmat.primitives import serialization as pem

    key = pem.load_pem_private_key((folder / "key.pem").read_bytes(), None)
    locked = key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.BestAvailableEncryption(b"hunter2"))
    (folder / "locked.pem").write_bytes(locked)
    with pytest.raises(ConfigError, match=expected):
        await listed(folder, "https://localhost:1", **given)


def test_what_a_proxy_is_made_from_is_its_settings(folder):
    from rollbook.adapters.proxies.opening import proxy_config
    from rollbook.adapters.proxies.routed_api import RoutedApiOptions

    proxy = ProxySettings(
        name="router-a",
        kind="routed-api",
        admin_url="http://h",
        pools=("rollout",),
        api_key=SecretRef(env="A"),
        options={"model_name": "m", "worker_key": {"env": "B"}},
    )
    made_from = proxy_config(proxy, "math-rl", environ={"A": "hunter2", "B": "hunter3"}, base=folder)
    assert (made_from.api_key, made_from.tls) == ("hunter2", None)
    assert made_from.options == RoutedApiOptions(model_name="m", worker_key=SecretRef(env="B"))
    assert made_from.secrets == {"worker_key": "hunter3"}
    with pytest.raises(ConfigError, match="B is not set"):
        proxy_config(proxy, "math-rl", environ={"A": "x"}, base=folder)
