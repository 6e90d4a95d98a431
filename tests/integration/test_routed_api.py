"""XTuner's routed API, as far as a small server that keeps its rules can stand in for it."""

from __future__ import annotations

import msgspec
import pytest
from support.small_routers import RoutedApi, small_router
from support.workers import http_worker

from rollbook.adapters.proxies.kinds import ProxyConfig
from rollbook.adapters.proxies.routed_api import NO_KEY, Deployment, RoutedApiOptions, RoutedApiProxy
from rollbook.adapters.secret_ref import SecretRef
from rollbook.projections.ports import Done, Entry, Failed, ProxyUnavailable, Target, Unsupported

MODEL = "qwen3-8b"
URL = "http://10.0.0.1:8000/v1"
OTHER = "http://10.0.0.2:8000/v1"


@pytest.fixture
async def api():
    async with small_router(RoutedApi) as api:
        yield api


def routed(url: str, **secrets: str) -> RoutedApiProxy:
    options = RoutedApiOptions(model_name=MODEL, worker_key=SecretRef(env="K") if secrets else None)
    return RoutedApiProxy(
        ProxyConfig(name="router-a", fleet="math-rl", admin_url=url, options=options, secrets=secrets)
    )


@pytest.fixture
async def proxy(api):
    proxy = routed(f"{api.url}")
    yield proxy
    await proxy.close()


def target(url: str = URL, **more) -> Target:
    return Target(worker="rollout-3-0", incarnation=8, url=url, **more)


def entry(url: str = URL) -> Entry:
    return Entry(url=url, handle=url)


async def test_a_worker_is_filed_once_however_often_it_is_added(proxy, api):
    """A lost answer is repeated; a second deployment of the worker would get twice its share."""
    for _ in range(3):
        assert await proxy.add(target()) == Done()
    assert await proxy.add(target(OTHER)) == Done()
    assert api.filed == [(MODEL, URL, NO_KEY), (MODEL, OTHER, NO_KEY)]


async def test_a_removal_takes_exactly_one_worker_of_one_model(proxy, api):
    """I3."""
    api.filed.append(("other-model", URL, "k"))
    for url in (URL, OTHER):
        await proxy.add(target(url))
    assert await proxy.remove(entry()) == Done()
    assert await proxy.remove(entry()) == Done()
    assert api.filed == [("other-model", URL, "k"), (MODEL, OTHER, NO_KEY)]


async def test_every_delete_names_its_worker(proxy, api):
    await proxy.add(target())
    await proxy.remove(entry())
    assert api.asked("/v1/models/delete") == [{"model_name": MODEL, "api_base": URL}] * 2
    before = len(api.requests)
    with pytest.raises(ValueError, match="wipes the model"):
        await proxy.remove(entry(""))
    assert len(api.requests) == before


@pytest.mark.parametrize("parts", [("", URL), (MODEL, ""), ("", "")])
def test_a_deployment_without_a_worker_cannot_be_written_down(parts):
    model, base = parts
    with pytest.raises(ValueError, match="wipes the model"):
        Deployment(model_name=model, api_base=base)
    with pytest.raises(msgspec.ValidationError, match="wipes the model"):
        msgspec.convert({"model_name": model, "api_base": base}, Deployment)


async def test_it_cannot_be_asked_what_is_there(proxy, api):
    assert not proxy.capabilities.list
    with pytest.raises(ProxyUnavailable, match="has no listing"):
        await proxy.list()
    assert isinstance(await proxy.drain(entry()), Unsupported)
    assert api.requests == []


async def test_what_the_api_cannot_express_is_not_half_done(proxy, api):
    assert isinstance(await proxy.add(target(role="decode")), Unsupported)
    answer = await proxy.add(target(model="other"))
    assert answer == Unsupported(f"its pool has the model 'other', this proxy files under '{MODEL}'")
    assert api.requests == []
    assert await proxy.add(target(model=MODEL)) == Done()


async def test_the_workers_key_is_handed_over_and_never_shown(api, monkeypatch):
    from aiohttp import web

    proxy = routed(api.url, worker_key="hunter2")
    assert await proxy.add(target()) == Done()
    assert api.filed == [(MODEL, URL, "hunter2")]
    assert "hunter2" not in repr(proxy)

    async def repeat(request: web.Request) -> web.Response:
        return web.json_response({"error": f"cannot add {await request.text()}"}, status=400)

    await api.stop()
    monkeypatch.setattr(api, "_new", repeat)
    await api.start()
    answer = await proxy.add(target())
    assert isinstance(answer, Failed)
    assert answer.reason.startswith("cannot add")
    assert "hunter2" not in answer.reason
    await proxy.close()


@pytest.mark.parametrize("part", ["error", "success"])
async def test_an_error_inside_a_200_is_a_failure(proxy, api, monkeypatch, part):
    from aiohttp import web

    async def refuse(_: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "full"}} if part == "error" else {"success": False})

    await api.stop()
    monkeypatch.setattr(api, "_delete", refuse)
    await api.start()
    for answer in (await proxy.add(target()), await proxy.remove(entry())):
        assert isinstance(answer, Failed)
    assert api.filed == []


async def test_another_kind_of_server_is_told_apart():
    async with http_worker() as worker:
        proxy = routed(worker.url)
        for call in (proxy.add(target()), proxy.remove(entry())):
            with pytest.raises(ProxyUnavailable, match="not the routed API"):
                await call
        await proxy.close()
