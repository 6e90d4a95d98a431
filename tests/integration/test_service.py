"""The controller answers over a real nats-server; its fleet is in memory."""

import asyncio
import contextlib
import json
from pathlib import Path

import msgspec
import pytest
from support.core import FLEET
from support.fleet import BY, Fleet, W
from support.nats import DEADLINE
from support.until import until

from rollbook.adapters.jetstream.client import NotPermitted
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.memory.faults import ProxyFaults
from rollbook.adapters.memory.leadership import MemoryLeadership
from rollbook.adapters.service import server
from rollbook.adapters.service.client import BadRequest, Controllers, ControllerSilent, NoController, Refusal
from rollbook.adapters.service.frames import ALIVE, FRAME, PART
from rollbook.adapters.service.messages import (
    INFO,
    PLAN,
    RECONCILE,
    STATUS,
    VERIFY,
    InfoRequest,
    PlanRequest,
    Problem,
    ReconcileRequest,
    Reply,
    Request,
    Verb,
    VerifyRequest,
)
from rollbook.adapters.service.server import MOST_AT_ONCE, handler, service
from rollbook.adapters.service.verbs import HANDLERS
from rollbook.adapters.service.verifying import verifying
from rollbook.events import ReconcileHeld, ReconcileReleased, RollbookError, WorkerCordoned, WorkerDown, WorkerUp
from rollbook.projections.looking.preview import Change
from rollbook.projections.looking.saved import save
from rollbook.projections.ports import LogUnavailable

pytestmark = pytest.mark.integration

OTHER = "rollout-1-0"


class Number(Reply, frozen=True, kw_only=True):
    number: int


WAITING = Verb("waiting", Request, Number, Number)
ACTING = Verb("acting", Request, Number, Number, acts=True)


@contextlib.asynccontextmanager
async def led(nats_client, *proxies, handlers=HANDLERS, epoch=1, **paces):
    """A fleet in memory whose controller serves on `nats_client`, and who asks it."""
    fleet = Fleet(*proxies, **paces)
    fleet.seat.epoch = epoch - 1
    fleet.companions = [service(nats_client, handlers)]
    controller = fleet.controller = fleet.make()
    running = asyncio.create_task(controller.run())
    asking = Controllers(nats_client, FLEET)
    try:
        await until(lambda: answers(asking, running, handlers[0].verb), bool)
        yield fleet, asking
    finally:
        controller.stop()
        await running


async def answers(asking, running, verb):
    if running.done():
        running.result()
    with contextlib.suppress(NoController, ControllerSilent, Refusal):
        await asking.ask(verb, verb.request(), silence=1.0)
        return True
    return False


def reconcile(**fields):
    return ReconcileRequest(by="ann@here", **fields)


async def planned(asking, **fields):
    return [(line.change, line.worker) for line in (await asking.ask(PLAN, PlanRequest(**fields))).lines]


async def test_who_leads_says_so(nats_client):
    async with led(nats_client, "a", "b") as (fleet, asking):
        info = await asking.ask(INFO, InfoRequest())
        assert (info.fleet, info.owner, info.epoch) == (FLEET, "one", 1)
        assert info.proxies == {"a": ("rollout",), "b": ("rollout",)}
        assert info.uptime_seconds >= 0
        assert info.sequence <= fleet.controller.projector.state.sequence
        assert info.digest is None
        state = fleet.controller.projector.state
        with_digest = await asking.ask(INFO, InfoRequest(digest=True))
        assert (with_digest.sequence, with_digest.digest) == (state.sequence, state.digest())


async def test_nobody_answers_before_and_after(nats_client):
    asking = Controllers(nats_client, FLEET)
    with pytest.raises(NoController, match="start one with `rollbook up`"):
        await asking.ask(INFO, InfoRequest())
    async with led(nats_client):
        await asking.ask(INFO, InfoRequest())
    with pytest.raises(NoController):
        await asking.ask(INFO, InfoRequest())


async def test_a_plain_nats_tool_can_ask_and_find_it(nats_client):
    async with led(nats_client):
        answer = await nats_client.request(f"rollbook-rpc.{FLEET}.info", b"", timeout=DEADLINE)
        assert json.loads(answer.data)["owner"] == "one"
        found = await nats_client.request(f"$SRV.INFO.rollbook-{FLEET}", b"", timeout=DEADLINE)
        names = {endpoint["name"] for endpoint in json.loads(found.data)["endpoints"]}
        assert {"info", "status", "plan", "reconcile"} <= names


async def test_status_is_what_the_proxies_list(nats_client):
    async with led(nats_client) as (fleet, asking):
        url = await fleet.up()
        await fleet.registered()
        status = await asking.ask(STATUS, Request())
        assert status.converged
        assert [one.url for worker in status.workers for one in worker.registrations] == [url]


async def test_under_a_hold_the_plan_shows_what_is_to_be_done_and_a_pass_does_it_after_the_release(nats_client):
    async with led(nats_client) as (fleet, asking):
        await fleet.say(ReconcileHeld(**BY))
        url = await fleet.up()
        await until(lambda: planned(asking), lambda lines: lines == [(Change.WITHHELD, W)])
        done = await asking.ask(RECONCILE, reconcile())
        assert (done.finished, done.steps, done.left.differs) == (True, (), True)
        assert fleet.listed() == []

        await fleet.say(ReconcileReleased(**BY))
        progress = []
        done = await asking.ask(RECONCILE, reconcile(), progress.append)
        assert done.finished
        assert done.left.lines == ()
        assert fleet.listed() == [(W, 1, url)]
        assert progress == list(done.steps[: len(progress)])


async def test_a_pass_at_one_proxy_leaves_the_others_alone(nats_client):
    async with led(nats_client, "a", "b", resync=1000.0) as (fleet, asking):
        await fleet.up()
        for name in ("a", "b"):
            await fleet.registered(proxy=name)
            fleet.proxies[name].restart()
        done = await asking.ask(RECONCILE, reconcile(proxy="b"))
        assert [(step.outcome, step.proxy, step.worker) for step in done.steps] == [("registered", "b", W)]
        assert fleet.listed("a") == []
        assert await planned(asking, proxy="a") == [(Change.REGISTER, W)]


async def test_what_cannot_be_done_is_left_over_and_ends_the_pass(nats_client):
    async with led(nats_client, "a", "b", backoff_first=1000.0, backoff_most=1000.0) as (fleet, asking):
        fleet.proxies["a"].faults = ProxyFaults(fail_job=1.0)
        fleet.proxies["b"].available = False
        await fleet.up()
        await until(lambda: planned(asking), len)
        done = await asking.ask(RECONCILE, reconcile())
        assert done.finished
        assert {step.outcome for step in done.steps} == {"failed"}
        assert [(line.change, line.proxy) for line in done.left.lines] == [(Change.REGISTER, "a")]
        assert list(done.left.unreachable) == ["b"]


async def test_i12_force_exceeds_the_budget_this_once(nats_client):
    async with led(nats_client, resync=1.0) as (fleet, asking):
        names = [f"rollout-{number}-0" for number in range(4)]
        for port, name in enumerate(names):
            await fleet.up(name, port=9000 + port)
        for name in names:
            await fleet.registered(name)
        await fleet.say(*(WorkerDown(worker=name, incarnation=1, evidence="timeout") for name in names))
        lines = await until(lambda: planned(asking), lambda lines: {change for change, _ in lines} == {"withheld"})
        kept = [worker for _, worker in lines]
        assert [worker for worker, _, _ in fleet.listed()] == kept
        assert (await asking.ask(RECONCILE, reconcile())).left.count(Change.WITHHELD) == len(kept)
        done = await asking.ask(RECONCILE, reconcile(force=True))
        assert {(step.outcome, step.worker) for step in done.steps} == {("deregistered", worker) for worker in kept}
        assert done.left.lines == ()


async def test_a_saved_plan_that_the_world_has_overtaken_is_refused(nats_client):
    async with led(nats_client) as (fleet, asking):
        await fleet.say(ReconcileHeld(**BY))
        await fleet.up()
        await until(lambda: planned(asking), len)
        kept = save(await asking.ask(PLAN, PlanRequest()), None)
        await fleet.up(OTHER, port=8001)
        await until(lambda: planned(asking), lambda lines: len(lines) == 2)
        with pytest.raises(Refusal, match=rf"new: register {OTHER} #1 http://10.0.0.1:8001 at a"):
            await asking.ask(RECONCILE, reconcile(plan=kept))
        fresh = save(await asking.ask(PLAN, PlanRequest()), None)
        await fleet.say(WorkerCordoned(worker=OTHER, **BY))
        await until(lambda: planned(asking), lambda lines: len(lines) == 1)
        with pytest.raises(Refusal, match=rf"no more: register {OTHER}"):
            await asking.ask(RECONCILE, reconcile(plan=fresh))
        assert (await asking.ask(RECONCILE, reconcile(plan=kept))).finished
        assert fleet.calls("add") == []


async def test_what_cannot_be_asked_is_said(nats_client):
    async with led(nats_client) as (_, asking):
        with pytest.raises(BadRequest, match="there is no proxy 'x'; there is: a"):
            await asking.ask(PLAN, PlanRequest(proxy="x"))
        with pytest.raises(ControllerSilent, match="has not finished"):
            await asking.ask(Verb("nonsense", Request, Reply, Reply), Request(deadline_seconds=-5))
        for nonsense in (b"\xff", b'{"proxy":' + b"[" * 10_000 + b"]" * 10_000 + b"}"):
            answer = await nats_client.request(f"rollbook-rpc.{FLEET}.plan", nonsense, timeout=DEADLINE)
            assert answer.headers["Nats-Service-Error-Code"] == "400"
            assert "cannot be read" in json.loads(answer.data)["message"]


@pytest.mark.parametrize("path", ["@elsewhere:1/", "x", ""])
async def test_no_path_sends_a_verification_and_the_admin_key_to_another_host(nats_client, path):
    handlers = (*HANDLERS, verifying(None, environ={}, base=Path()))
    async with led(nats_client, handlers=handlers) as (_, asking):
        with pytest.raises(BadRequest, match="is no path; write it as /v1/chat/completions"):
            await asking.ask(VERIFY, VerifyRequest(path=path))


async def test_10000_workers_fit_into_one_reply(nats_client):
    async with led(nats_client, resync=1000.0) as (fleet, asking):
        await fleet.say(ReconcileHeld(**BY))
        await fleet.say(*(WorkerUp(worker=f"rollout-{number}-0", incarnation=1) for number in range(10_000)))
        await fleet.controller.projector.caught_up()
        status = await asking.ask(STATUS, Request(deadline_seconds=DEADLINE * 3))
        assert len(status.workers) == 10_000
        plan = await asking.ask(PLAN, PlanRequest(deadline_seconds=DEADLINE * 3))
        assert plan.count(Change.WITHHELD) == 10_000


async def test_a_reply_in_parts_through_a_server_that_takes_little(start_nats):
    server = start_nats(config="max_payload: 16384")
    client = await connect(Connection(url=server.url), name="tests", timeout=DEADLINE)
    try:
        async with led(client, resync=1000.0) as (fleet, asking):
            await fleet.say(ReconcileHeld(**BY))
            await fleet.say(*(WorkerUp(worker=f"rollout-{number}-0", incarnation=1) for number in range(3000)))
            await fleet.controller.projector.caught_up()
            first = await client.request(f"rollbook-rpc.{FLEET}.status", b"", timeout=DEADLINE)
            assert first.headers[PART].startswith("1/")
            assert len((await asking.ask(STATUS, Request(deadline_seconds=DEADLINE))).workers) == 3000
    finally:
        await client.close()


async def test_who_may_not_ask_is_told_so_at_once(start_nats):
    """And not that the controller is silent."""
    denied = f'permissions: {{ publish: {{ deny: ["rollbook-rpc.{FLEET}.reconcile"] }} }}'
    server = start_nats(config=f'authorization {{ users: [{{ user: "a", password: "b", {denied} }}] }}')
    client = await connect(Connection(url=server.url, user="a", password="b"), name="tests", timeout=DEADLINE)
    try:
        async with led(client) as (_, asking):
            with pytest.raises(NotPermitted, match=f"does not permit user 'a' to publish to rollbook-rpc.{FLEET}"):
                await asking.ask(RECONCILE, reconcile())
            assert (await asking.ask(INFO, InfoRequest())).owner == "one"
    finally:
        await client.close()


# ---------------------------------------------------------------- leaders that do not run, and that lead no more


@pytest.fixture
async def connected(start_nats):
    """Connections to one server: who asks, a leader's, and its successor's."""
    url = start_nats().url
    clients = [await connect(Connection(url=url), name=name, timeout=DEADLINE) for name in ("asker", "old", "new")]
    yield clients
    for client in clients:
        await client.close()


def reading_of(client):
    """Where `client` reads; paused, it is as a process that does not run: the server keeps its subscriptions."""
    return client._transport._io_writer.transport


async def test_a_leader_that_does_not_run_keeps_no_question_from_its_successor(connected):
    asker, old, new = connected
    asking = Controllers(asker, FLEET)
    async with led(old):
        reading_of(old).pause_reading()
        async with led(new, epoch=2):
            epochs = [(await asking.ask(INFO, InfoRequest())).epoch for _ in range(10)]
            assert (await asking.ask(RECONCILE, reconcile())).finished
        reading_of(old).resume_reading()
    assert epochs == [2] * 10


async def test_i7_whose_lease_is_over_answers_nothing_and_begins_nothing(connected):
    """Also before it has noticed by itself: here it never does."""
    asker, old, new = connected
    asking = Controllers(asker, FLEET)
    fleet = Fleet()
    begun = []

    async def act(*_):
        begun.append(1)
        return Number(number=1)

    async def woken(leading):
        leadership = MemoryLeadership(fleet.seat, fleet.clock)
        assert leadership.left() <= 0
        resources = msgspec.structs.replace(leading.resources, leadership=leadership)
        handlers = (HANDLERS[0], handler(ACTING, act))
        await service(old, handlers)(msgspec.structs.replace(leading, resources=resources))

    async def silent():
        with contextlib.suppress(NoController):
            with pytest.raises(ControllerSilent, match="no sign of life"):
                await asking.ask(ACTING, Request(), silence=0.5)
            return True
        return False

    fleet.companions = [woken]
    controller = fleet.controller = fleet.make()
    running = asyncio.create_task(controller.run())
    try:
        await until(silent, bool)
        assert begun == []
        async with led(new, epoch=2):
            assert [(await asking.ask(INFO, InfoRequest())).epoch for _ in range(10)] == [2] * 10
    finally:
        controller.stop()
        await running


async def test_what_nobody_waits_for_any_more_is_not_begun(connected):
    """A leader that wakes within its lease finds questions whose askers gave up."""
    asker, old, _ = connected
    asking = Controllers(asker, FLEET)
    begun = []

    async def act(_, request, __):
        begun.append(request.deadline_seconds)
        return Number(number=1)

    async with led(old, handlers=(HANDLERS[0], handler(ACTING, act))):
        reading_of(old).pause_reading()
        with pytest.raises(ControllerSilent, match="no sign of life"):
            await asking.ask(ACTING, Request(deadline_seconds=10.0), silence=0.5)
        with pytest.raises(LogUnavailable, match="nobody listens"):  # the server has done all that came before
            await asker.ask("nobody.there")
        reading_of(old).resume_reading()
        assert (await asking.ask(ACTING, Request(deadline_seconds=20.0))).number == 1
    assert begun == [20.0]


# ---------------------------------------------------------------- how a verb may end


@contextlib.asynccontextmanager
async def answering(nats_client, answer):
    async with led(nats_client, handlers=(HANDLERS[0], handler(WAITING, answer))) as (_, asking):
        yield asking


async def test_progress_comes_before_the_reply(nats_client):
    async def count(_, __, progress):
        for number in range(3):
            await progress(Number(number=number))
        return Number(number=3)

    seen = []
    async with answering(nats_client, count) as asking:
        assert (await asking.ask(WAITING, Request(), lambda update: seen.append(update.number))).number == 3
    assert seen == [0, 1, 2]


async def test_a_failure_is_a_sentence_and_a_defect_ends_nothing(nats_client):
    raised = [RollbookError("the provider is gone"), KeyError("x")]

    async def fail(*_):
        raise raised.pop(0)

    async with answering(nats_client, fail) as asking:
        with pytest.raises(Refusal, match="the provider is gone"):
            await asking.ask(WAITING, Request())
        with pytest.raises(Refusal, match="failed in the controller: KeyError"):
            await asking.ask(WAITING, Request())
        assert (await asking.ask(INFO, InfoRequest())).owner == "one"


async def test_what_no_utf_8_can_say_is_told_too(nats_client):
    """A file of addresses may have such a name; whoever asked waited for a sign of life that did not come."""
    said = [RollbookError("no file a-\udcff"), KeyError("b-\udcff"), Problem("failed", "c-\udcff")]

    async def say(*_):
        one = said.pop(0)
        if isinstance(one, Exception):
            raise one
        return one

    async with answering(nats_client, say) as asking:
        for sentence in (r"no file a-\\udcff", r"KeyError: .*b-\\+udcff", "in the controller: UnicodeEncodeError"):
            with pytest.raises(Refusal, match=sentence):
                await asking.ask(WAITING, Request(), silence=2.0)


async def test_a_request_ends_with_its_deadline(nats_client):
    ended = asyncio.Event()

    async def wait(*_):
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with answering(nats_client, wait) as asking:
        with pytest.raises(Refusal, match="not done within the time"):
            await asking.ask(WAITING, Request(deadline_seconds=0.1))
        await asyncio.wait_for(ended.wait(), DEADLINE)


class Hearing(Controllers):
    """Sets `long` when a sign of life comes later than `seconds` after the first one."""

    def __init__(self, client, seconds):
        super().__init__(client, FLEET)
        self.long = asyncio.Event()
        self._seconds = seconds
        self._first = None

    def _take(self, message, *more):
        if (message.headers or {}).get(FRAME) == ALIVE:
            now = asyncio.get_running_loop().time()
            self._first = self._first or now
            if now - self._first > self._seconds:
                self.long.set()
        return super()._take(message, *more)


async def test_who_waits_hears_that_it_is_alive_and_when_it_is_not(nats_client, monkeypatch):
    """The controller ends in the middle of a request: whoever asked does not wait for the deadline."""
    monkeypatch.setattr(server, "ALIVE_SECONDS", 0.05)
    silence = 2.0
    hearing = Hearing(nats_client, silence)

    async def wait(*_):
        begun.set()
        await hearing.long.wait()
        return Number(number=1)

    begun = asyncio.Event()
    async with answering(nats_client, wait):
        assert (await hearing.ask(WAITING, Request(), silence=silence)).number == 1
        hearing.long.clear()
        begun.clear()
        waiting = asyncio.create_task(hearing.ask(WAITING, Request(), silence=silence))
        await begun.wait()
    with pytest.raises(ControllerSilent, match="no sign of life for 2 s"):
        await waiting


async def test_long_requests_hold_up_no_query_and_too_many_are_refused(nats_client):
    async def wait(*_):
        await asyncio.Event().wait()

    async with answering(nats_client, wait) as asking:
        waiting = [asyncio.create_task(asking.ask(WAITING, Request())) for _ in range(MOST_AT_ONCE - 1)]
        await until(lambda: _stats(nats_client), lambda count: count == MOST_AT_ONCE - 1)
        assert (await asking.ask(INFO, InfoRequest())).owner == "one"
        waiting.append(asyncio.create_task(asking.ask(WAITING, Request())))
        await until(lambda: _stats(nats_client), lambda count: count == MOST_AT_ONCE)
        with pytest.raises(Refusal, match="at work on"):
            await asking.ask(INFO, InfoRequest())
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _stats(nats_client):
    answer = await nats_client.request(f"$SRV.STATS.rollbook-{FLEET}", b"", timeout=DEADLINE)
    (of,) = [one for one in json.loads(answer.data)["endpoints"] if one["name"] == "waiting"]
    return of["num_requests"]
