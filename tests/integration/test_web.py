"""Metrics, health and the read API of real controllers over a real nats-server; the routers are in memory."""

import asyncio
import contextlib
import json
import random
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs
from support.nats import DEADLINE
from support.until import until

from rollbook.adapters.clock import SystemClock
from rollbook.adapters.ids import UuidV7
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.leadership import JetStreamLeadership
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.provision import provision
from rollbook.adapters.jetstream.snapshots import JetStreamSnapshots
from rollbook.adapters.memory.proxy import MemoryProxy
from rollbook.adapters.memory.readiness import MemoryReadiness
from rollbook.adapters.proxies.measured import MeasuredProxy
from rollbook.adapters.settings import WebSettings
from rollbook.adapters.static import StaticProvider
from rollbook.adapters.web.metrics import Metrics
from rollbook.adapters.web.server import SECURITY, PortTaken, Web, listening
from rollbook.events import Codec, DriftFound, FleetStarted, WorkerDown, WorkerUp
from rollbook.projections.leading.controller import Controller
from rollbook.projections.looking.status import FleetStatus
from rollbook.projections.policy import Policy, PoolPolicy, ProxyPolicy, ReconcilePolicy
from rollbook.projections.ports import HostAndPort
from rollbook.projections.resources import Resources
from rollbook.projections.state.observers import Heartbeat

pytestmark = pytest.mark.integration

W, OTHER = "rollout-0-0", "rollout-1-0"
LOOPBACK = HostAndPort("127.0.0.1", 0)
SETTINGS = WebSettings(listen="127.0.0.1:9464", hosts=("metrics.example",))


class Process:
    """One controller with its pages, as `bootstrap.build` puts them together."""

    def __init__(self, client, fleet, routers, owner):
        self.log = JetStreamLog(client, fleet)
        self.leadership = JetStreamLeadership(client, fleet)
        clock = SystemClock()
        readiness = MemoryReadiness(clock)
        for port in (8000, 8001):
            readiness.serve(f"http://10.0.0.1:{port}")
        self.resources = Resources(
            log=self.log,
            snapshots=JetStreamSnapshots(client, fleet),
            leadership=self.leadership,
            provider=StaticProvider(
                {W: {"primary": HostAndPort("10.0.0.1", 8000)}, OTHER: {"primary": HostAndPort("10.0.0.1", 8001)}}
            ),
            readiness=readiness,
            clock=clock,
            ids=UuidV7(),
            rng=random.Random(1),
            owner=owner,
        )
        self.policy = Policy(
            fleet=fleet,
            pools={"rollout": PoolPolicy()},
            proxies={name: ProxyPolicy(name=name, pools=("rollout",)) for name in routers},
            reconcile=ReconcilePolicy(resync=0.2, call_deadline=1.0),
        )
        self.routers = routers
        self.url = ""

    @contextlib.asynccontextmanager
    async def run(self):
        metrics = Metrics((await self.log.state()).last_sequence, self.routers)
        proxies = {name: MeasuredProxy(router, metrics.note_call) for name, router in self.routers.items()}
        self.controller = Controller(self.policy, self.resources, list(proxies.values()), witnesses=[metrics.witness])
        pages = Web(self.controller, self.resources, proxies, metrics)
        async with listening(pages, SETTINGS, LOOPBACK) as bound:
            self.url = f"http://{bound}"
            running = asyncio.create_task(self.controller.run())
            try:
                yield self
            finally:
                self.controller.stop()
                await running


class Site:
    """A fleet on a server, its routers, and who publishes into its log."""

    def __init__(self, client, fleet):
        self.client = client
        self.fleet = fleet
        self.codec = Codec(fleet)
        self.log = JetStreamLog(client, fleet)
        self.ids = UuidV7()
        clock = SystemClock()
        self.routers = {name: MemoryProxy(name, fleet, clock, random.Random(2)) for name in ("a", "b")}

    def process(self, owner="one", client=None):
        return Process(client or self.client, self.fleet, self.routers, owner)

    async def say(self, *facts, ident=None):
        for fact in facts:
            time = "2026-01-01T00:00:00Z"
            draft = self.codec.draft(fact, id=ident or self.ids.new(), time=time, publisher="test")
            await self.log.append([draft])

    async def garbage(self):
        await self.client.ask(f"rollbook.{self.fleet}.worker.{W}", b"no fact")


@pytest.fixture
async def site(nats_client, fleet):
    await provision(nats_client, fleet, timeout=DEADLINE)
    return Site(nats_client, fleet)


@pytest.fixture
async def http():
    async with aiohttp.ClientSession() as session:
        yield session


async def get(http, url, **headers):
    async with http.get(url, headers=headers) as answer:
        return answer.status, json.loads(await answer.read())


async def scrape(http, process):
    """`name{label=value,...}` (labels sorted by name) → number, of everything that is ours."""
    async with http.get(f"{process.url}/metrics") as answer:
        assert answer.status == 200
        text = await answer.text()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def registered(found, proxy="a"):
    return found[f"rollbook_proxy_registered{{proxy={proxy}}}"]


async def test_the_metrics_are_what_happened(site, http):
    await site.say(FleetStarted(run_id="before"), WorkerUp(worker=W, incarnation=1))
    async with site.process().run() as process:
        await until(lambda: scrape(http, process), lambda found: registered(found) == registered(found, "b") == 1)
        await site.say(WorkerUp(worker=OTHER, incarnation=1), WorkerDown(worker=W, incarnation=1, evidence="exited"))
        await site.say(WorkerUp(worker=W, incarnation=1), ident="late")  # of a life that is over, and unseen
        await site.garbage()
        found = await until(
            lambda: scrape(http, process),
            lambda found: (
                found.get("rollbook_outcomes_total{action=deregister,proxy=b,result=done}")
                and found.get("rollbook_outcomes_total{action=deregister,proxy=a,result=done}")
                and found["rollbook_quarantined"] == 1
                and registered(found) == registered(found, "b") == 1
                and found["rollbook_fold_lag"] == 0
            ),
        )
        # What stood in the log before this process is not counted; what came since is, exactly.
        assert "rollbook_facts_total{type=fleet.started}" not in found
        assert found["rollbook_facts_total{type=worker.up}"] == 2
        assert found["rollbook_facts_total{type=worker.down}"] == 1
        assert found["rollbook_facts_total{type=unreadable}"] == 1
        assert found["rollbook_facts_total{type=quarantine.message_quarantined}"] == 1
        assert found["rollbook_facts_ignored_total{type=worker.up}"] == 1
        assert "rollbook_facts_ignored_total{type=worker.down}" not in found
        for proxy in ("a", "b"):
            assert found[f"rollbook_outcomes_total{{action=register,proxy={proxy},result=done}}"] == 2
            assert found[f"rollbook_outcomes_total{{action=deregister,proxy={proxy},result=done}}"] == 1
            assert found[f"rollbook_proxy_wanted{{proxy={proxy}}}"] == 1
            assert found[f"rollbook_proxy_reachable{{proxy={proxy}}}"] == 1
            assert found[f"rollbook_proxy_call_seconds_count{{proxy={proxy},result=pending,verb=add}}"] == 2
            router = site.routers[proxy]
            listings = found[f"rollbook_proxy_call_seconds_count{{proxy={proxy},result=done,verb=list}}"]
            assert 0 < listings <= sum(call.verb == "list" for call in router.calls)
        assert found["rollbook_facts_total{type=proxy.registered}"] == 4
        assert found["rollbook_workers{phase=serving}"] == found["rollbook_workers{phase=down}"] == 1
        assert found["rollbook_leader"] == 1
        assert found["rollbook_leader_epoch"] == process.controller.leading.epoch
        assert 0 < found["rollbook_lease_seconds_left"] < 60
        assert found["rollbook_takeovers_total"] == 1
        assert found["rollbook_fold_sequence"] == (await site.log.state()).last_sequence
        assert found["rollbook_fold_lag_seconds"] == 0
        assert found["rollbook_log_reachable"] == 1
        assert not [name for name in found if W in name or OTHER in name], "a worker is no label"


async def test_for_how_long_an_observer_has_been_silent_is_a_metric(site, http):
    name = "rollbook_observer_silent_seconds{observer=watch}"
    async with site.process().run() as process:
        observers, clock = process.resources.observers, process.resources.clock
        assert name not in await scrape(http, process)
        observers.heard(Heartbeat(observer="watch", every=600.0), clock.monotonic())
        assert (await scrape(http, process))[name] == 0
        observers.heard(Heartbeat(observer="watch", every=0.1), clock.monotonic() - 100)
        assert (await scrape(http, process))[name] >= 100
        observers.heard(Heartbeat(observer="watch", every=600.0), clock.monotonic())
        assert (await scrape(http, process))[name] == 0


async def test_what_a_proxy_lacks_and_has_too_much_is_shown(site, http):
    await site.say(WorkerUp(worker=W, incarnation=1))
    async with site.process().run() as process:
        await until(lambda: scrape(http, process), lambda found: registered(found) == 1)
        await site.say(DriftFound(proxy="not-ours", foreign=("http://x",)))
        site.routers["b"].available = False
        site.routers["a"].put("http://10.9.9.9:1")
        found = await until(
            lambda: scrape(http, process),
            lambda found: (
                found["rollbook_proxy_reachable{proxy=b}"] == 0
                and found["rollbook_proxy_drift{kind=foreign,proxy=a}"] == 1
            ),
        )
        assert found["rollbook_proxy_drift{kind=missing,proxy=a}"] == 0
        assert found["rollbook_proxy_call_seconds_count{proxy=b,result=unavailable,verb=list}"] > 0
        assert not [name for name in found if "not-ours" in name]


async def test_leader_and_standby_are_both_ready_and_say_which(site, http, nats_server):
    client = await connect(Connection(url=nats_server.url), name="standby", timeout=DEADLINE)
    try:
        async with site.process("one").run() as one:
            await until(lambda: get(http, f"{one.url}/readyz"), lambda told: told[1]["role"] == "leading")
            await site.say(WorkerUp(worker=W, incarnation=1))
            async with site.process("two", client).run() as two:
                status, told = await until(
                    lambda: get(http, f"{two.url}/readyz"),
                    lambda told: told[1]["ready"] and told[1].get("led_by") == "one",
                )
                assert (status, told["role"], told["reasons"]) == (200, "standing by", [])
                status, told = await get(http, f"{one.url}/readyz")
                assert (status, told["ready"], told["role"]) == (200, True, "leading")
                assert told["epoch"] == one.controller.leading.epoch
                found = await scrape(http, two)
                assert found["rollbook_leader"] == found["rollbook_leader_epoch"] == 0
                assert found["rollbook_proxy_wanted{proxy=a}"] == 1
                assert not [name for name in found if name.startswith("rollbook_lane_keys")]
                # The read API answers on both alike.
                for process in (one, two):
                    status, roster = await get(http, f"{process.url}/v1/roster")
                    assert status == 200
                    assert [worker["name"] for worker in roster["workers"]] == [W]
                    assert roster["controller"] == "one"
    finally:
        await client.close()


async def test_without_its_log_it_lives_and_is_not_ready(fleet, http, start_nats):
    server = start_nats()
    client = await connect(Connection(url=server.url), name="test", timeout=DEADLINE)
    await provision(client, fleet, timeout=DEADLINE)
    site = Site(client, fleet)
    try:
        async with site.process().run() as process:
            await until(lambda: get(http, f"{process.url}/readyz"), lambda told: told[0] == 200)
            server.pause()
            _, told = await until(lambda: get(http, f"{process.url}/readyz"), lambda told: told[0] == 503)
            assert any("log does not answer" in reason for reason in told["reasons"])
            assert (await get(http, f"{process.url}/healthz")) == (200, {"alive": True})
            assert (await scrape(http, process))["rollbook_log_reachable"] == 0
            server.resume()
            await until(lambda: get(http, f"{process.url}/readyz"), lambda told: told[0] == 200)
    finally:
        server.resume()
        await client.close()


async def test_the_read_api_has_the_shapes_of_the_commands(site, http):
    await site.say(WorkerUp(worker=W, incarnation=1))
    async with site.process().run() as process:
        await until(lambda: scrape(http, process), lambda found: registered(found) == registered(found, "b") == 1)
        status, roster = await get(http, f"{process.url}/v1/roster")
        assert status == 200
        assert json.loads(msgspec.json.encode(msgspec.convert(roster, FleetStatus))) == roster
        assert roster["converged"]
        _, proxies = await get(http, f"{process.url}/v1/proxies")
        assert {**roster, "time": 0, "sequence": 0} == {
            **proxies,
            "workers": roster["workers"],
            "time": 0,
            "sequence": 0,
        }
        status, plan = await get(http, f"{process.url}/v1/plan")
        assert (status, plan["fleet"]) == (200, site.fleet)
        assert not [line for line in plan["lines"] if line["change"] != "foreign"]


async def test_many_readers_cost_a_router_no_more_than_one(site, http):
    async with site.process().run() as process:
        await until(lambda: get(http, f"{process.url}/readyz"), lambda told: told[0] == 200)
        before = len(site.routers["a"].calls)
        answers = await asyncio.gather(*(get(http, f"{process.url}/v1/roster") for _ in range(40)))
        assert {status for status, _ in answers} == {200}
        assert len(site.routers["a"].calls) - before < 20


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9464", "127.0.0.1.evil.example", "", "[::1"])
async def test_a_host_name_that_is_not_ours_is_refused(site, http, host):
    async with site.process().run() as process:
        status, told = await get(http, f"{process.url}/v1/roster", Host=host)
        assert status == 421
        assert "web.hosts" in told["error"]


@pytest.mark.parametrize("host", ["localhost:9464", "127.0.0.1", "[::1]:80", "10.1.2.3:9464", "Metrics.Example."])
async def test_addresses_and_our_names_are_answered(site, http, host):
    async with site.process().run() as process:
        assert (await get(http, f"{process.url}/healthz", Host=host))[0] == 200


async def test_only_get_is_answered_and_every_answer_is_guarded(site, http):
    async with site.process().run() as process:
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            async with http.request(method, f"{process.url}/v1/roster") as answer:
                assert answer.status == 405, method
                assert "Access-Control-Allow-Origin" not in answer.headers
        for path, status in (("/healthz", 200), ("/nothing", 404), ("/metrics", 200)):
            async with http.get(process.url + path, headers={"Origin": "http://evil.example"}) as answer:
                assert answer.status == status
                assert {name: answer.headers[name] for name in SECURITY} == SECURITY
                assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize(
    ("sent", "said"),
    [(b"\x16\x03\x01\x02\x00\x01\r\n\r\n", []), (b"GET / HTTP/1.1\r\na b: c\r\n\r\n", ["info"])],
)
async def test_what_is_no_http_is_no_failure_of_ours(site, caplog, sent, said):
    async with site.process().run() as process:
        address = urlsplit(process.url)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        with capture_logs() as logs:
            writer.write(sent)
            async with asyncio.timeout(DEADLINE):
                answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert b" 400 " in answer.partition(b"\r\n")[0]
    assert [line["log_level"] for line in logs if line["event"] == "web.not_http"] == said
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_openmetrics_is_spoken_to_who_asks_for_it(site, http):
    async with site.process().run() as process:
        accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
        async with http.get(f"{process.url}/metrics", headers=accept) as answer:
            assert answer.content_type == "application/openmetrics-text"
            assert (await answer.text()).endswith("# EOF\n")


async def test_a_port_that_is_taken_is_said_by_its_key(site):
    async with site.process().run() as process:
        port = int(process.url.rpartition(":")[2])
        pages = Web(process.controller, process.resources, {}, Metrics(0, ()))
        with pytest.raises(PortTaken, match=rf"web.listen: nothing can listen at 127.0.0.1:{port}"):
            async with listening(pages, SETTINGS, HostAndPort("127.0.0.1", port)):
                pass
