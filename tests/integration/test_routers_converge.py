"""A whole controller over real routers: workers come, die and return, routers restart, and each ends up right [I1]."""

from __future__ import annotations

import pytest
from support.benches import ROUTERS
from support.routers import need_haproxy, running
from support.scene import FLEET, NAMES, scene
from support.until import until

from rollbook.adapters.proxies.haproxy_socket import RuntimeSocket

pytestmark = [pytest.mark.router, pytest.mark.integration]


@pytest.fixture(params=list(ROUTERS))
def router(request, tmp_path_factory):
    if request.param == "haproxy":
        need_haproxy()
    with running(ROUTERS[request.param][0](tmp_path_factory.mktemp(request.param))) as router:
        yield router, request.param


def over(tmp_path, router, kind):
    told = {"admin_url": router.admin_url, "options": {"backend": "workers"}} if kind == "haproxy" else {}
    return scene(tmp_path, router, kind, **told)


async def test_every_router_ends_up_right_whatever_happens(tmp_path, router):
    """I1, I2, I3, I4."""
    async with over(tmp_path, *router) as on:
        one, two, three, four = NAMES
        for name in NAMES:
            await on.up(name, 1)
        await on.right()

        await on.workers[one].stop()
        await on.down(one)
        await on.right()

        await on.workers[one].start()  # on the same URL
        await on.up(one, 2)
        await on.up(two, 2)  # a new life of which the end of the old one was not reported
        await on.right()
        assert set(+(await on.served())) == set(NAMES)

        on.router.restart()
        await on.right()

        await on.down(three)
        on.router.restart()
        await on.up(four, 2)
        await on.right()
        assert set(+(await on.served())) == {one, two, four}


@pytest.mark.parametrize("router", ["haproxy"], indirect=True)
async def test_what_somebody_does_to_a_server_by_hand_is_set_right(tmp_path, router):
    """I1, I11: out of rotation is no registration; and a server of somebody else's stays."""
    async with over(tmp_path, *router) as on:
        await on.up(NAMES[0], 1)
        await on.right()
        socket = RuntimeSocket("by-hand", on.router.admin_url)
        name = f"{NAMES[0]}.1.{FLEET}"
        for command in ("drain", "maint"):
            assert await socket.ask(f"set server workers/{name} state {command}") == ""
            await on.right()
        address = on.workers[NAMES[1]].url.removeprefix("http://")
        half = f"add server workers/{NAMES[1]}.1.{FLEET} {address} check"
        assert await socket.ask(half) == "New server registered."
        await on.right()  # nobody said that this worker is up: a ghost of an add
        await on.up(NAMES[1], 1)
        await on.right()
        assert await socket.ask(f"add server workers/mine {address} check") == "New server registered."
        await on.down(NAMES[1])
        del on.lives[NAMES[0]]
        await on.publisher.worker_down(NAMES[0], incarnation=1, evidence="exited", reason="test")

        async def left():
            return [line for line in (await socket.ask("show servers state workers")).splitlines()[2:] if line]

        (mine,) = await until(left, lambda lines: len(lines) == 1)
        assert " mine " in mine
