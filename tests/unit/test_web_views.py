"""The read API says what the lanes do: also what they hold back and the log does not name."""

from support.fleet import Fleet, on_virtual_time

from rollbook.adapters.web.fleet_metrics import FleetCollector
from rollbook.adapters.web.metrics import Metrics
from rollbook.adapters.web.views import Views
from rollbook.events import RemovalWithheld
from rollbook.projections.lanes import guard, notes
from rollbook.projections.looking.preview import Change
from rollbook.projections.looking.status import Standing


def views_of(fleet):
    return Views(fleet.controller, fleet.controller._resources, fleet.proxies)


def withheld_metric(fleet):
    metrics = Metrics(0, fleet.proxies)
    metrics.registry.register(FleetCollector(fleet.controller, fleet.controller._resources, metrics))
    return metrics.registry.get_sample_value("rollbook_proxy_withheld", {"proxy": "a"})


async def one_that_cannot_be_judged():
    """A fleet of two, of whom one is thought to be dead while the provider cannot be asked; and who that is."""
    fleet = Fleet()
    await fleet.start()
    withheld, _ = await fleet.pool_up(2)
    await fleet.stop()
    fleet.provider.available = False
    await fleet.start("two")
    await fleet.down(withheld, evidence="timeout")
    await fleet.until(lambda: fleet.controller.lanes["a"].withheld, 30)
    return fleet, withheld


@on_virtual_time
async def test_i12_the_plan_withholds_what_the_lanes_withhold():
    fleet, withheld = await one_that_cannot_be_judged()
    views = views_of(fleet)
    [line] = (await views.plan()).lines
    assert (line.change, line.worker, line.would) == (Change.WITHHELD, withheld, Change.DEREGISTER)
    assert "has not been listed yet" in line.reason
    await views.close()


@on_virtual_time
async def test_i12_status_and_metric_know_who_cannot_be_judged_yet():
    fleet, withheld = await one_that_cannot_be_judged()
    views = views_of(fleet)
    taken = await views.status()
    assert taken.proxies[0].withheld == (withheld,)
    [one] = [worker.registrations[0] for worker in taken.workers if worker.name == withheld]
    assert one.state is Standing.WITHHELD
    assert "has not been listed yet" in one.reason
    assert withheld_metric(fleet) == 1
    await views.close()


@on_virtual_time
async def test_i12_status_and_metric_know_those_whom_no_fact_had_room_to_name(monkeypatch):
    """A standby knows as much as the log."""
    monkeypatch.setattr(notes, "MOST_NAMED", 1)
    monkeypatch.setattr(guard, "MOST_NAMED", 1)
    fleet = Fleet(served={"removal_budget": 0.0})
    await fleet.start()
    names = await fleet.pool_up(3)
    for name in names:
        await fleet.down(name, evidence="timeout")
    await fleet.until(lambda: len(fleet.controller.lanes["a"].withheld) == len(names), 30)
    await fleet.until(lambda: fleet.facts(RemovalWithheld), 30)
    views = views_of(fleet)
    assert (await views.status()).proxies[0].withheld == tuple(names)
    assert withheld_metric(fleet) == len(names)
    await views.close()
    fleet.controller.leading = None
    assert withheld_metric(fleet) == 1
