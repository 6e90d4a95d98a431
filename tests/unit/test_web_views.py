"""The read API says what the lanes do: also what they hold back and the log does not name."""

from support.fleet import Fleet, on_virtual_time

from rollbook.adapters.web.views import Views
from rollbook.projections.preview import Change


@on_virtual_time
async def test_i12_the_plan_withholds_what_the_lanes_withhold():
    fleet = Fleet()
    await fleet.start()
    names = await fleet.pool_up(2)
    await fleet.stop()
    fleet.provider.available = False
    await fleet.start("two")
    await fleet.down(names[0], evidence="timeout")
    await fleet.until(lambda: fleet.controller.lanes["a"].withheld, 30)
    views = Views(fleet.controller, fleet.controller._resources, fleet.proxies)
    [line] = (await views.plan()).lines
    assert (line.change, line.worker, line.would) == (Change.WITHHELD, names[0], Change.DEREGISTER)
    assert "has not been listed yet" in line.reason
    await views.close()
