"""Every thing that `rollbook doctor` looks at is broken for real, and the fix that it names is the one for that."""

import asyncio
import json
import os
import random
import re
import socket
import time

import msgspec
import pytest
from aiohttp import web
from support.nats import DEADLINE
from support.roles import FLEET, PASSWORDS, ROLES, as_role, server_with_roles
from support.routers import running_router
from support.until import until

from rollbook.adapters.cli.doctor import render
from rollbook.adapters.cli.main import run
from rollbook.adapters.clock import SystemClock
from rollbook.adapters.doctor import log as doctor_log
from rollbook.adapters.doctor.examination import examine
from rollbook.adapters.doctor.findings import State
from rollbook.adapters.ids import UuidV7
from rollbook.adapters.jetstream import api
from rollbook.adapters.jetstream.leadership import JetStreamLeadership
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.provision import provision
from rollbook.adapters.jetstream.snapshots import JetStreamSnapshots
from rollbook.adapters.memory.readiness import MemoryReadiness
from rollbook.adapters.publisher import Publisher
from rollbook.adapters.service.server import service
from rollbook.adapters.service.verbs import HANDLERS
from rollbook.adapters.settings import Client, ClientSettings, load
from rollbook.adapters.static import StaticProvider
from rollbook.projections.leading.controller import Controller
from rollbook.projections.policy import Policy
from rollbook.projections.resources import Resources

pytestmark = pytest.mark.integration

EVERYTHING = (
    "read the log",
    "publish worker facts",
    "publish fleet facts",
    "ask the controller",
    "command the controller",
    "control",
)
STATIC = """
[provider]
kind = "static"
[provider.workers.rollout-0-0]
primary = "127.0.0.1:1"
[pools.rollout]
requires_proxy = false
"""


class Patient:
    """A folder with a configuration, and its examination."""

    def __init__(self, folder, fleet):
        self.folder = folder
        self.fleet = fleet
        self.environ = {}

    def configure(self, url, *tables, nats="", provider=STATIC):
        text = f'fleet = "{self.fleet}"\n[nats]\nurl = "{url}"\n{nats}\n{provider}' + "".join(tables)
        (self.folder / "rollbook.toml").write_text(text)

    async def examine(self):
        config = load(None, environ=self.environ, cwd=self.folder)
        settings = ClientSettings(fleet=config.settings.fleet, nats=config.settings.nats)
        checks = (await examine(Client(settings=settings, base=self.folder), config, self.environ)).checks
        assert all(one.fix for one in checks if one.state in {State.WARNING, State.FAILED})
        assert not [one for one in checks if "could not be looked at" in one.told]
        return {one.check: one for one in checks}


@pytest.fixture
def patient(tmp_path, fleet):
    return Patient(tmp_path, fleet)


def proxy(url, more="", kind="sglang", name="router-a"):
    return f'[[proxies]]\nname = "{name}"\nkind = "{kind}"\nadmin_url = "{url}"\npools = ["rollout"]\n{more}\n'


@pytest.fixture
async def stream(nats_client, fleet):
    await provision(nats_client, fleet, timeout=DEADLINE)
    return nats_client


@pytest.fixture
def nobody():
    """Where connections are refused, and nobody else can listen meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


# ---------------------------------------------------------------- NATS


async def test_what_is_well_is_ok(patient, nats_server, stream):
    patient.configure(nats_server.url)
    found = await patient.examine()
    for check in (
        "config",
        "packages",
        "nats",
        "max_payload",
        "jetstream",
        "stream",
        "clock",
        "permissions",
        "provider",
    ):
        assert found[check].state is State.OK, found[check]
    assert re.search(r"answers in \d+\.\d ms, without credentials; nats-server 2\.", found["nats"].told)
    assert found["durability"].state is State.WARNING
    assert "sync_interval is unknown" in found["durability"].told
    assert "sync_interval: always" in found["durability"].fix
    assert (found["leadership"].state, found["leadership"].fix) == (State.WARNING, "start `rollbook up`")
    assert found["provider"].told == "the configuration knows 1 worker; whether they are alive it cannot tell"
    assert not any(one.state is State.FAILED for one in found.values())


async def test_it_leaves_nothing_behind(patient, nats_server, stream):
    patient.configure(nats_server.url)
    await patient.examine()
    info = await api.question(stream, f"STREAM.INFO.ROLLBOOK_{patient.fleet}", timeout=DEADLINE)
    assert (info["state"]["last_seq"], info["state"]["consumer_count"]) == (0, 0)
    names = await api.question(stream, "STREAM.NAMES", {"subject": f"rollbook.{patient.fleet}.>"}, timeout=DEADLINE)
    assert names["streams"] == [f"ROLLBOOK_{patient.fleet}"]


async def test_no_server(patient, nobody):
    patient.configure(f"nats://{nobody}")
    found = await patient.examine()
    assert found["nats"].state is State.FAILED
    assert found["nats"].fix == f"start nats-server at nats://{nobody}, or correct nats.url and nats.ca"
    assert found["stream"].state is found["leadership"].state is State.SKIPPED


async def test_a_wrong_token(patient, start_nats):
    server = start_nats(config='authorization { token: "right" }')
    patient.environ["TOKEN"] = "wrong"
    patient.configure(server.url, nats='token = { env = "TOKEN" }')
    found = (await patient.examine())["nats"]
    assert found.state is State.FAILED
    assert "correct nats.token" in found.fix
    assert "wrong" not in found.told


async def test_a_secret_that_is_not_there(patient, nats_server):
    patient.configure(nats_server.url, nats='token = { env = "TOKEN" }')
    found = (await patient.examine())["nats"]
    assert found.state is State.FAILED
    assert "TOKEN is not set" in found.told
    assert "put the secret where" in found.fix


async def test_a_server_without_jetstream(patient, start_nats):
    patient.configure(start_nats(jetstream="").url)
    found = (await patient.examine())["nats"]
    assert (found.state, "without JetStream" in found.told) == (State.FAILED, True)
    assert "jetstream { store_dir" in found.fix


async def test_a_payload_that_is_too_small(patient, start_nats):
    patient.configure(start_nats(config="max_payload: 100KB").url)
    found = (await patient.examine())["max_payload"]
    assert found.state is State.FAILED
    assert "max_payload: 1MB" in found.fix


async def test_no_stream(patient, nats_server):
    patient.configure(nats_server.url)
    found = await patient.examine()
    assert found["stream"].state is State.WARNING
    assert "start `rollbook up` once" in found["stream"].fix
    assert found["leadership"].state is State.SKIPPED


@pytest.mark.parametrize(
    ("change", "state", "told", "fix"),
    [
        ({"max_age": 3_600_000_000_000}, State.FAILED, "max_age is", "nats stream edit"),
        ({"max_msgs_per_subject": 1}, State.FAILED, "max_msgs_per_subject is 1", "nats stream edit"),
        ({"duplicate_window": 1_000_000_000}, State.WARNING, "duplicate_window is", "start `rollbook up`, which mends"),
        ({"allow_direct": False}, State.WARNING, "allow_direct is False", "start `rollbook up`, which mends"),
    ],
)
async def test_a_stream_with_wrong_settings(patient, nats_server, stream, change, state, told, fix):
    name = f"ROLLBOOK_{patient.fleet}"
    config = (await api.question(stream, f"STREAM.INFO.{name}", timeout=DEADLINE))["config"]
    await api.question(stream, f"STREAM.UPDATE.{name}", config | change, timeout=DEADLINE)
    patient.configure(nats_server.url)
    found = (await patient.examine())["stream"]
    assert found.state is state
    assert told in found.told
    assert fix in found.fix


async def test_a_clock_that_is_off(patient, nats_server, stream, monkeypatch):
    class Late:
        monotonic = staticmethod(time.monotonic)

        @staticmethod
        def time():
            return time.time() - 90

    monkeypatch.setattr(doctor_log, "time", Late)
    patient.configure(nats_server.url)
    found = (await patient.examine())["clock"]
    assert found.state is State.WARNING
    assert re.search(r"the server's is (89|90)\.\d+ s ahead", found.told)
    assert "NTP" in found.fix


# ---------------------------------------------------------------- permissions


@pytest.mark.parametrize(
    ("role", "may", "may_not"),
    [
        (
            "publisher",
            "read the log, publish worker facts or publish fleet facts",
            "decide, ask the controller, command the controller or control",
        ),
        (
            "operator",
            "read the log, publish fleet facts, decide, ask the controller or command the controller",
            "publish worker facts or control",
        ),
        (
            "reader",
            "read the log or ask the controller",
            "publish worker facts, publish fleet facts, decide, command the controller or control",
        ),
        (
            "controller",
            ", ".join(EVERYTHING[:-1]) + " or control",
            "decide",
        ),
    ],
)
async def test_what_each_role_may_do(patient, start_nats, monkeypatch, role, may, may_not):
    server = server_with_roles(start_nats, monkeypatch)
    patient.fleet = FLEET
    async with as_role(server, "controller") as client:
        await provision(client, FLEET, timeout=DEADLINE)
        before = await JetStreamLog(client, FLEET).state()
        patient.environ["PASSWORD"] = PASSWORDS[role]
        patient.configure(server.url, nats=f'user = "{role}"\npassword = {{ env = "PASSWORD" }}')
        found = await patient.examine()
        assert found["permissions"].state is State.OK, found["permissions"]
        assert found["permissions"].told == f"these credentials may {may}, and not {may_not}"
        assert found["stream"].state is State.OK
        after = await JetStreamLog(client, FLEET).state()
        assert msgspec.structs.replace(after, at=before.at) == before


async def test_a_role_that_lacks_one_subject(patient, start_nats, monkeypatch):
    missing = '"$JS.API.CONSUMER.CREATE.ROLLBOOK_math-rl.>"'
    assert missing in ROLES
    server = server_with_roles(start_nats, monkeypatch, ROLES.replace(missing, ""))
    patient.fleet = FLEET
    patient.environ["PASSWORD"] = PASSWORDS["controller"]
    patient.configure(server.url, nats='user = "controller"\npassword = { env = "PASSWORD" }')
    found = (await patient.examine())["permissions"]
    assert found.state is State.FAILED
    assert "to control: $JS.API.CONSUMER.CREATE.ROLLBOOK_math-rl.doctor" in found.told
    assert "deploy/nats-roles.conf" in found.fix


async def test_credentials_that_may_nothing(patient, start_nats):
    users = '{ user: u, password: pw, permissions: { publish: ["$JS.API.INFO"], subscribe: ["_INBOX.>"] } }'
    server = start_nats(config=f"authorization {{ users: [{users}] }}")
    patient.environ["PASSWORD"] = "pw"
    patient.configure(server.url, nats='user = "u"\npassword = { env = "PASSWORD" }')
    found = await patient.examine()
    assert found["permissions"].state is State.FAILED
    assert "docs/permissions.md" in found["permissions"].fix
    assert found["stream"].state is State.FAILED
    assert "does not permit user 'u' to publish to $JS.API.STREAM.INFO" in found["stream"].told


# ---------------------------------------------------------------- leadership


async def test_who_leads(patient, nats_server, stream):
    clock = SystemClock()
    resources = Resources(
        log=JetStreamLog(stream, patient.fleet),
        snapshots=JetStreamSnapshots(stream, patient.fleet),
        leadership=JetStreamLeadership(stream, patient.fleet),
        provider=StaticProvider({}),
        readiness=MemoryReadiness(clock),
        clock=clock,
        ids=UuidV7(),
        rng=random.Random(1),
        owner="one",
    )
    policy = Policy(fleet=patient.fleet, pools={}, proxies={})
    controller = Controller(policy, resources, [], [service(stream, HANDLERS)])
    running = asyncio.create_task(controller.run())
    patient.configure(nats_server.url)
    try:
        found = (await until(patient.examine, lambda found: found["leadership"].state is State.OK))["leadership"]
        assert re.match(r"one leads since \S+Z \(\d+ s\), epoch \d+, version ", found.told)
        async with Publisher(patient.fleet, nats_server.url) as publisher:
            await publisher.worker_up("rollout-0-0", incarnation=1)
            found = (await until(patient.examine, lambda found: "1 worker" in found["workers"].told))["workers"]
            assert (found.state, found.told) == (State.OK, "1 worker, 1 serving")
            await publisher.worker_down("rollout-0-0", evidence="exited")
        found = (await until(patient.examine, lambda found: found["workers"].state is State.WARNING))["workers"]
        assert found.told == "1 worker, 0 serving, 1 down: rollout-0-0"
        assert found.fix.startswith("`rollbook explain rollout-0-0` says why")
    finally:
        controller.stop()
        await running


async def test_a_leader_that_does_not_answer(patient, nats_server, stream):
    leadership = JetStreamLeadership(stream, patient.fleet)
    await leadership.acquire("one")
    try:
        patient.configure(nats_server.url)
        found = (await patient.examine())["leadership"]
        assert found.state is State.WARNING
        assert re.match(r"one holds the lease since \S+Z, and does not answer", found.told)
    finally:
        await leadership.release()


# ---------------------------------------------------------------- proxies and provider


async def test_a_dead_router(patient, nats_server, stream, nobody):
    patient.configure(nats_server.url, proxy(f"http://{nobody}"))
    found = (await patient.examine())["proxy router-a"]
    assert found.state is State.FAILED
    assert "connection refused" in found.told
    assert f"start the router of proxies.router-a, or correct its admin_url (http://{nobody})" in found.fix


@pytest.mark.router
async def test_a_router_with_a_key_and_one_without(patient, nats_server, stream, tmp_path):
    (tmp_path / "a").mkdir()
    with running_router(tmp_path / "a", "--api-key=right") as router:
        patient.configure(nats_server.url, proxy(router.url))
        found = (await patient.examine())["proxy router-a"]
        assert found.state is State.FAILED
        assert found.fix == "set api_key of proxies.router-a to the key that the router was started with"
        patient.environ["KEY"] = "wrong"
        patient.configure(nats_server.url, proxy(router.url, 'api_key = { env = "KEY" }'))
        found = (await patient.examine())["proxy router-a"]
        assert found.state is State.FAILED
        assert found.fix.startswith("correct the key that api_key of proxies.router-a refers to")
        assert "wrong" not in found.told
        patient.environ["KEY"] = "right"
        found = (await patient.examine())["proxy router-a"]
        assert found.state is State.OK, found
        assert re.search(r"sglang.* at \S+ lists 0; it can list, remove, tag \(not drain\)", found.told)


async def test_a_router_that_hangs_and_one_that_is_something_else(patient, nats_server, stream):
    async def page(_):
        return web.Response(text="<html>hello", content_type="text/html")

    async def hang(_):
        await asyncio.Event().wait()

    app = web.Application()
    app.router.add_get("/a/workers", page)
    app.router.add_get("/b/workers", hang)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        patient.configure(
            nats_server.url,
            proxy(f"{url}/a"),
            proxy(f"{url}/b", name="router-b", more="call_deadline = 0.3"),
        )
        found = await patient.examine()
        assert "correct its admin_url" in found["proxy router-a"].fix
        assert "router of proxies.router-b hangs" in found["proxy router-b"].fix
        assert [check for check in found if check.startswith("proxy")] == ["proxy router-a", "proxy router-b"]
    finally:
        await runner.cleanup()


async def test_https_where_plain_http_is_spoken(patient, nats_server, stream):
    async def page(_):
        return web.Response(text="{}")

    app = web.Application()
    app.router.add_get("/workers", page)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        patient.configure(nats_server.url, proxy(f"https://127.0.0.1:{runner.addresses[0][1]}"))
        found = await patient.examine()
        assert found["proxy router-a"].state is State.FAILED
        assert found["proxy router-a"].fix.startswith("write http:// in admin_url of proxies.router-a")
        assert "1 proxy" in found["config"].told
    finally:
        await runner.cleanup()


async def test_a_proxy_whose_key_is_not_there(patient, nats_server, stream):
    patient.configure(nats_server.url, proxy("http://127.0.0.1:1", 'api_key = { env = "KEY" }'))
    found = (await patient.examine())["proxies"]
    assert found.state is State.FAILED
    assert "KEY is not set" in found.told


def test_rays_token_is_thought_of():
    from rollbook.adapters.doctor.fleet import _ray_fix
    from rollbook.adapters.settings import RayProvider

    assert "RAY_AUTH_MODE=token" in _ray_fix(RayProvider(address="ray-head:6379"), {})
    assert "RAY_AUTH_MODE=token" in _ray_fix(RayProvider(), {"RAY_ADDRESS": "ray-head:6379"})
    assert "RAY_AUTH_MODE" not in _ray_fix(RayProvider(address="ray-head:6379"), {"RAY_AUTH_MODE": "token"})
    assert "RAY_AUTH_MODE" not in _ray_fix(RayProvider(), {})


# ---------------------------------------------------------------- this machine


async def test_facts_left_in_an_outbox(patient, nats_server, stream, tmp_path):
    (tmp_path / ".rollbook").mkdir(mode=0o700)
    for name in ("left", "used"):
        publisher = Publisher(patient.fleet, "nats://127.0.0.1:1", outbox=tmp_path / ".rollbook" / name)
        assert await asyncio.to_thread(publisher.worker_up("w-0-0", incarnation=1).wait_persisted, DEADLINE)
        if name == "left":
            await publisher.aclose(0)
    patient.environ["ROLLBOOK_OUTBOX"] = str(tmp_path / "outside")
    (tmp_path / "outside").write_text("this is no outbox at all, but a text that is long enough to be looked at" * 9)
    patient.configure(nats_server.url)
    try:
        found = await patient.examine()
    finally:
        await publisher.aclose(0)
    assert found["outbox left"].state is State.WARNING
    assert "1 fact of a process that ended, in " in found["outbox left"].told
    assert "start its publisher again" in found["outbox left"].fix
    assert found["outbox used"].state is State.OK
    assert found["outbox outside"].state is State.FAILED


async def test_a_folder_that_others_can_read(patient, nats_server, stream, tmp_path):
    (tmp_path / ".rollbook").mkdir(mode=0o700)
    patient.configure(nats_server.url)
    assert (await patient.examine())["folder"].state is State.OK
    (tmp_path / ".rollbook" / "nats.url").write_text("nats://token@127.0.0.1:1")
    (tmp_path / ".rollbook" / "nats.url").chmod(0o644)
    found = (await patient.examine())["folder"]
    assert found.state is State.FAILED
    assert found.fix == f"chmod -R go-rwx {tmp_path}/.rollbook"


async def test_an_open_web_port(patient, nats_server, stream):
    patient.configure(nats_server.url, '[web]\nlisten = "0.0.0.0:9464"\n')
    found = (await patient.examine())["web"]
    assert found.state is State.WARNING
    assert "set web.listen to 127.0.0.1" in found.fix


# ---------------------------------------------------------------- the command


def test_the_command_says_it_in_lines_and_in_json(patient, nats_server, nobody, monkeypatch, capsys):
    patient.configure(nats_server.url, proxy(f"http://{nobody}"))
    monkeypatch.chdir(patient.folder)
    assert run(["doctor"], os.environ) == 1
    lines = capsys.readouterr().out.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("failed   proxy router-a")]
    assert lines[at + 1].strip().startswith("fix: start the router of proxies.router-a")
    assert "1 failed" in lines[-1]
    assert "\x1b" not in "".join(lines)
    assert run(["doctor", "--json"], os.environ) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["healthy"] is False
    assert {tuple(check) for check in document["checks"]} == {("check", "state", "told", "fix")}


def test_a_configuration_that_is_wrong_ends_with_its_own_code(patient, monkeypatch, capsys):
    (patient.folder / "rollbook.toml").write_text('fleet = "a b"\n[provider]\nkind = "static"\n')
    monkeypatch.chdir(patient.folder)
    assert run(["doctor", "--json"], os.environ) == 64
    document = json.loads(capsys.readouterr().out)
    assert [check["check"] for check in document["checks"]] == ["config"]
    assert document["checks"][0]["fix"].startswith("correct it")


def test_a_laptop_needs_fleet_and_server_only(nats_server, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROLLBOOK_FLEET", "nobody-made-it")
    monkeypatch.setenv("ROLLBOOK_NATS_URL", nats_server.url)
    assert run(["doctor", "--json"], os.environ) == 0
    checks = {check["check"]: check["state"] for check in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["provider"] == checks["proxies"] == "skipped"
    assert checks["nats"] == "ok"


def test_nothing_that_others_wrote_moves_the_cursor():
    from rollbook.adapters.doctor.findings import Findings

    findings = Findings()
    findings.failed("x", "evil\x1b[2J\nsecond line " + "y" * 1000, "fix")
    text = ["".join(piece if isinstance(piece, str) else piece[0] for piece in line) for line in render(findings.found)]
    assert "\x1b" not in "".join(text)
    assert len(text[0]) < 600
