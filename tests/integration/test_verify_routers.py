"""`verify` through a real vllm-router and a real haproxy, to workers that say who they are."""

import pytest
from support.benches import ROUTERS
from support.routers import need_haproxy, running
from support.verifying import OTHER, STRANGER, W, site_at, verdicts

from rollbook.events import Registered, WorkerDown, WorkerUp
from rollbook.projections.looking.verification import Verdict

pytestmark = [pytest.mark.integration, pytest.mark.router]


@pytest.fixture(scope="module", params=["vllm", "haproxy"])
def router(request, tmp_path_factory):
    if request.param == "haproxy":
        need_haproxy()
    with running(ROUTERS[request.param][0](tmp_path_factory.mktemp(request.param))) as router:
        yield request.param, router


@pytest.fixture
async def site(tmp_path, nats_server, nats_client, fleet, router):
    kind, program = router
    admin, more = program.url, ""
    if kind == "haproxy":
        admin = program.admin_url
        more = f'data_url = "{program.url}"\n[proxies.options]\nbackend = "workers"\n'
    async with site_at(tmp_path, nats_client, fleet, program.url, nats_server.url, admin, kind=kind, more=more) as site:
        yield site


async def registered(site, name, incarnation=1):
    """At the router and in the log, which is all that is known of an entry where the router keeps no tags."""
    url = await site.worker(name)
    await site.say(WorkerUp(worker=name, incarnation=incarnation))
    await site.register(name, url, incarnation=incarnation)
    await site.say(Registered(proxy="router-a", worker=name, incarnation=incarnation, url=url))


async def test_all_is_right(site):
    for name in (W, OTHER):
        await registered(site, name)
    found = await site.verify()
    assert verdicts(found) == {W: (Verdict.RIGHT, "said so"), OTHER: (Verdict.RIGHT, "said so")}
    assert (found.sent, sum(one.requests for one in found.answered), found.failed) == (8, 8, {})
    assert found.url == f"{site.url}/v1/chat/completions"
    assert {one.incarnation for one in found.answered} == {1}
    assert (found.listed, found.drift, found.differs, found.broken) == (2, (), False, False)


async def test_the_dead_and_the_foreign_are_named(site):
    for name in (W, OTHER):
        await registered(site, name)
    await site.register(STRANGER, await site.worker(STRANGER))
    await site.say(WorkerDown(worker=W, incarnation=1, evidence="timeout"))
    found = await site.verify(requests=30)
    assert verdicts(found) == {
        W: (Verdict.DEAD, "said so"),
        OTHER: (Verdict.RIGHT, "said so"),
        STRANGER: (Verdict.FOREIGN, "said so"),
    }
    assert (found.differs, found.failed) == (True, {})
    assert W in {line.worker for line in found.drift}


async def test_an_old_life_that_still_answers_is_dead(site):
    await site.say(WorkerUp(worker=W, incarnation=1))
    await registered(site, W, incarnation=2)  # and the process there is still the first life
    [one] = (await site.verify()).answered
    assert (one.verdict, one.incarnation, one.reason) == (Verdict.DEAD, 1, "superseded by incarnation 2")


async def test_a_worker_that_is_gone_is_a_failed_request(site):
    await registered(site, W)
    await site.workers[0].stop()
    found = await site.verify(requests=4)
    assert sum(found.failed.values()) == 4
    assert (found.answered, found.broken, found.differs) == ((), True, False)
