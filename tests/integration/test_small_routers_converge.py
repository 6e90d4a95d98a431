"""A whole controller over routers that cannot do everything: what they can do ends up right, the rest is said once."""

from __future__ import annotations

import pytest
from support.old_routers import OldSglangRouter, need_old_sglang
from support.routers import running
from support.scene import NAMES, scene
from support.small_routers import LmdeployRouter, MilesRouter, RoutedApi, small_router
from support.until import until

from rollbook.events import Deregistering, Registering, RegistrationFailed
from rollbook.projections.state.ledger import Told

pytestmark = pytest.mark.integration

ONE, TWO, THREE, FOUR = NAMES
MODEL = "qwen3-8b"


async def value(look):
    return look()


async def seen(look, expected):
    """Wait until `look()` is that."""
    await until(lambda: value(look), lambda now: now == expected)


async def passes(router, count: int) -> None:
    """Wait until the router was read back so often from now on."""
    path = "/list_workers"
    before = len(router.asked(path))
    await until(lambda: value(lambda: len(router.asked(path))), lambda now: now >= before + count)


async def test_lmdeploy_ends_up_right_and_what_it_drops_comes_back(tmp_path):
    """I1, I2, I3."""
    async with small_router(LmdeployRouter) as router, scene(tmp_path, router, "lmdeploy") as on:
        for name in NAMES:
            await on.up(name, 1)
        await on.right()

        await on.workers[ONE].stop()
        await on.down(ONE)
        await on.right()

        await on.workers[ONE].start()  # on the same URL
        await on.up(ONE, 2)
        await on.up(TWO, 2)
        await on.right()

        on.workers[THREE].healthy = False
        await router.drop_the_silent()
        on.workers[THREE].healthy = True
        await on.right()

        router.forget()
        await on.down(FOUR)
        await on.right()
    assert router.terminated == []


async def test_miles_takes_workers_in_and_what_cannot_be_removed_is_said_once(tmp_path):
    """A removal is never sent, and not tried for ever; the other workers are kept right meanwhile."""
    async with small_router(MilesRouter) as router, scene(tmp_path, router, "miles") as on:
        for name in (ONE, TWO):
            await on.up(name, 1)
        await on.right()

        await on.down(ONE)
        await seen(lambda: on.said(Told.REMOVE_UNSUPPORTED), {on.workers[ONE].url: (ONE, 1)})
        await on.up(THREE, 1)
        await seen(lambda: set(router.urls), {on.workers[name].url for name in (ONE, TWO, THREE)})
        await passes(router, 5)
        (failed,) = await on.facts(RegistrationFailed)
        assert (failed.worker, failed.action, failed.retryable) == (ONE, "deregister", False)
        assert "cannot remove" in failed.reason
        assert await on.facts(Deregistering) == []

        await on.up(ONE, 2)  # on the same URL
        await seen(on.said, on.wanted)

        router.forget()
        await seen(lambda: (set(router.urls), on.said()), (set(on.wanted), on.wanted))
    assert {path.partition("?")[0] for _, path, _ in router.requests} == {"/add_worker", "/list_workers"}


async def test_what_is_registered_at_the_routed_api_is_what_the_log_says(tmp_path):
    """I1, I3: each worker is filed once, and every delete names its worker."""
    async with (
        small_router(RoutedApi) as api,
        scene(tmp_path, api, "routed-api", options={"model_name": MODEL}) as on,
    ):

        async def right():
            await seen(lambda: (sorted(api.bases(MODEL)), on.said()), (sorted(on.wanted), on.wanted))

        api.filed.append((MODEL, "http://somebody.else:8000", "k"))
        on.workers["somebody"] = type("Else", (), {"url": "http://somebody.else:8000"})()
        for name in NAMES:
            await on.up(name, 1)
        await seen(on.said, on.wanted)
        assert sorted(api.bases(MODEL)) == sorted([*on.wanted, "http://somebody.else:8000"])
        api.filed.pop(0)

        await on.workers[ONE].stop()
        await on.down(ONE)
        await right()

        await on.workers[ONE].start()  # on the same URL
        await on.up(ONE, 2)
        await on.up(TWO, 2)
        await right()

        await api.stop()
        await on.down(THREE)
        await on.up(FOUR, 2)
        await until(lambda: on.facts(RegistrationFailed, Registering), lambda facts: len(facts) > 6)
        await api.start()
        await right()
    assert all(body.get("api_base") for body in api.asked("/v1/models/delete"))


@pytest.mark.router
async def test_a_router_before_0_2_ends_up_right(tmp_path, pytestconfig):
    """I1, I2, I3: it keeps no tags, which is known from its first listing on."""
    (tmp_path / "router").mkdir()
    router = OldSglangRouter(tmp_path / "router", need_old_sglang(pytestconfig.cache, "0.1.9"))
    with running(router):
        async with scene(tmp_path, router, "sglang") as on:
            for name in NAMES:
                await on.up(name, 1)
            await on.right()

            await on.workers[ONE].stop()
            await on.down(ONE)
            await on.right()

            await on.workers[ONE].start()  # on the same URL
            await on.up(ONE, 2)
            await on.up(TWO, 2)
            await on.right()
            assert set(+(await on.served())) == set(NAMES)

            router.restart()
            await on.right()
