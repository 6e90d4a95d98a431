"""Deciding, waiting and planning without any controller: a real nats-server, and only the log to go by."""

import asyncio
import json
import os
import threading
from functools import partial

import pytest
from support import commands
from support.core import TIME
from support.nats import DEADLINE

from rollbook.adapters.cli.exits import Exit
from rollbook.adapters.ids import UuidV7
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.provision import provision
from rollbook.adapters.waiting import NotInTime, async_wait_gone, async_wait_routed, wait_gone, wait_routed
from rollbook.events import Codec, Deregistered, LeadershipTaken, Registered, RollbookError, WorkerUp

pytestmark = pytest.mark.integration

W, OTHER = "rollout-0-0", "rollout-1-0"
WHY = ("--reason", "test", "--by", "ann")


@pytest.fixture
def known(nats_server, fleet, tmp_path, monkeypatch):
    """An empty folder, and the two variables that are enough."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("ROLLBOOK_FLEET", fleet)
    monkeypatch.setenv("ROLLBOOK_NATS_URL", nats_server.url)
    return fleet


@pytest.fixture
def stream(known, nats_server):
    asyncio.run(_with_client(nats_server, lambda client: provision(client, known)))
    return known


@pytest.fixture
def say(stream, nats_server):
    """Store facts as a controller would."""

    def say(*facts):
        asyncio.run(_with_client(nats_server, lambda client: store(client, stream, *facts)))

    return say


async def store(client, fleet, *facts):
    ids, codec = UuidV7(), Codec(fleet)
    drafts = [codec.draft(fact, id=ids.new(), time=TIME, publisher="test") for fact in facts]
    await JetStreamLog(client, fleet).append(drafts)


async def _with_client(nats_server, use):
    client = await connect(Connection(url=nats_server.url), name="tests", timeout=DEADLINE)
    try:
        await use(client)
    finally:
        await client.close()


@pytest.fixture
def call(capsys):
    return partial(commands.call, capsys, environ=os.environ)


def registered(worker=W, incarnation=1, fact=Registered):
    return fact(proxy="a", worker=worker, incarnation=incarnation, url="http://10.0.0.1:8000")


def test_every_decision_is_a_fact_with_who_and_why_and_status_shows_it(stream, call, say):
    say(LeadershipTaken(proxy="a", owner="one", epoch=1))
    for worker in (W, OTHER):
        call("publish", "up", worker)
    assert call("cordon", W, *WHY) == (Exit.DONE, "4\n", "")
    assert call("drain", OTHER, *WHY, "--deadline", "2.5")[0] == Exit.DONE
    assert call("hold", "--proxy", "a", *WHY)[0] == Exit.DONE
    assert call("hold", *WHY)[0] == Exit.DONE
    said = call("log")[1]
    assert [line.split()[3] for line in said.splitlines()[3:]] == [
        "operator.worker_cordoned",
        "operator.drain_requested",
        "operator.reconcile_held",
        "operator.reconcile_held",
    ]
    assert said.count("by ann through cli-") == 4
    code, out, _ = call("status", "--json")
    assert code == Exit.DIFFERENCES
    decided = [(one["what"], one["about"], one["by"], one["why"]) for one in json.loads(out)["decisions"]]
    assert decided == [
        ("cordon", W, "ann", "test"),
        ("drain", OTHER, "ann", "test"),
        ("hold", "a", "ann", "test"),
        ("hold", None, "ann", "test"),
    ]
    assert call("uncordon", W, *WHY)[0] == Exit.DONE
    assert call("release", "--proxy", "a", *WHY)[0] == Exit.DONE
    assert call("release", *WHY)[0] == Exit.DONE
    assert call("forget", OTHER, *WHY)[0] == Exit.DONE
    out = call("status", "--json")[1]
    assert [(one["what"], one["about"]) for one in json.loads(out)["decisions"]] == [("forget", OTHER)]
    call("publish", "up", OTHER)
    assert json.loads(call("status", "--json")[1])["decisions"] == []
    assert call("end", "--yes", *WHY)[0] == Exit.DONE
    assert "end" in call("status")[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["uncordon", W, *WHY], f"{W} is not cordoned; nothing was published"),
        (["release", *WHY], "reconciliation as a whole is not held; held: a by ann; nothing was published"),
        (["release", "--proxy", "b", *WHY], "b is not held; held: a by ann; nothing was published"),
        (["drain", OTHER, *WHY], f"{OTHER} is down: there is nothing to drain; nothing was published"),
    ],
)
def test_what_would_change_nothing_is_not_published(stream, call, say, arguments, said):
    say(LeadershipTaken(proxy="a", owner="one", epoch=1))
    call("publish", "up", W)
    call("publish", "up", OTHER)
    call("publish", "down", OTHER)
    call("hold", "--proxy", "a", *WHY)
    before = call("log")[1]
    assert call(*arguments) == (Exit.DONE, "", f"rollbook: {said}\n")
    assert call("log")[1] == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["cordon", "rollout-0-1", *WHY], f"the log knows no worker 'rollout-0-1'; did you mean '{W}'?; say --yes"),
        (["forget", "nobody", *WHY], "the log knows no worker 'nobody'; say --yes to mean it"),
        (["drain", "nobody", *WHY], "the log knows no worker 'nobody'"),
        (["hold", "--proxy", "router", *WHY], "the log knows no proxy 'router'"),
        (["cordon", "a.b", *WHY], "'a.b' cannot name a worker"),
        (["hold", "--proxy", "a.b", *WHY], "'a.b' cannot name a proxy"),
        (["cordon", W], "--reason"),
        (["end"], "this ends the run: 1 worker, 0 registrations to be removed; say --yes to do it"),
        (["wait", "--all", "--min", "3"], "--all and --min contradict each other"),
        (["wait", "--worker", W, "--pool", "rollout"], "one worker is waited for"),
        (["wait", "--for", "gone", "--min", "3"], "a number of workers can be waited for to be routed"),
        (["reconcile", "--plan", "not-there"], "not-there cannot be read: No such file or directory"),
    ],
)
def test_wrong_usage_is_one_sentence_and_publishes_nothing(stream, call, arguments, said):
    call("publish", "up", W)
    code, out, err = call(*arguments)
    assert (code, out) == (Exit.USAGE, "")
    assert said in err
    assert len(call("log")[1].splitlines()) == 1


def test_a_name_that_is_meant_all_the_same(stream, call):
    assert call("cordon", "nobody", *WHY, "--yes") == (Exit.DONE, "1\n", "")
    assert call("hold", "--proxy", "later", *WHY, "--yes") == (Exit.DONE, "2\n", "")


def test_the_log_alone_tells_what_is_to_be_done(stream, call, say):
    call("publish", "up", W)
    say(registered())
    call("publish", "up", OTHER)
    call("publish", "down", W)
    code, out, err = call("plan", "--json")
    assert code == Exit.DIFFERENCES
    lines = [(line["change"], line["worker"], line["url"]) for line in json.loads(out)["lines"]]
    assert lines == [("register", OTHER, None), ("deregister", W, "http://10.0.0.1:8000")]
    assert "this is what the log says last" in err
    code, out, err = call("status")
    assert code == Exit.DIFFERENCES
    assert "a: unwanted (serving: down (operator))" in out
    assert call("plan", "--out", "x.plan")[0] == Exit.USAGE
    assert call("reconcile")[:2] == (Exit.FAILED, "")


def test_every_timeout_may_be_seconds_alone(stream, call):
    assert call("publish", "up", W, "--timeout", str(DEADLINE))[:2] == (Exit.DONE, "1\n")
    code, _, err = call("reconcile", "--timeout", "5")
    assert (code, "no controller" in err) == (Exit.FAILED, True)


def test_a_controller_that_hangs_is_given_up_and_the_log_is_read(stream, call, nats_server):
    """It is subscribed, as one that was stopped with SIGSTOP, and never says a word."""
    call("publish", "up", W)
    hanging, done = threading.Event(), threading.Event()

    async def hang(client):
        await client.subscribe(f"rollbook-rpc.{stream}.status")
        await client.flush()
        hanging.set()
        await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(_with_client(nats_server, hang)))
    thread.start()
    try:
        assert hanging.wait(DEADLINE)
        code, out, err = call("status")
    finally:
        done.set()
        thread.join()
    assert code == Exit.DIFFERENCES
    assert "by the log alone" in out
    assert "gave no sign of life" in err


def test_wait_follows_the_log(stream, call, say):
    call("publish", "up", W)
    code, out, err = call("wait", "--timeout", "1")
    assert (code, out) == (Exit.WAITED, "")
    assert f"{W}: no controller has run yet" in err
    later = threading.Timer(0.5, lambda: say(registered()))
    later.start()
    code, out, _ = call("wait", "--worker", W, "--timeout", str(DEADLINE))
    later.join()
    assert (code, out) == (Exit.DONE, "1 routed, at sequence 2\n")
    code, out, _ = call("wait", "--for", "gone", "--timeout", "1", "--json")
    assert code == Exit.WAITED
    assert json.loads(out)["missing"] == {W: "a: registered (life 1, http://10.0.0.1:8000)"}
    say(registered(fact=Deregistered))
    assert call("wait", "--for", "gone", "--timeout", str(DEADLINE))[0] == Exit.DONE


def test_a_trainer_waits_also_before_there_is_a_log(known, call, say):
    call("publish", "up", W)
    say(registered())
    assert wait_routed(pool="rollout", at_least=1, timeout=DEADLINE).there == (W,)
    with pytest.raises(NotInTime) as caught:
        wait_gone(timeout=1.0)
    assert caught.value.missing == {W: "a: registered (life 1, http://10.0.0.1:8000)"}


async def test_a_trainer_waits_in_asyncio_and_without_a_log(known, nats_server):
    with pytest.raises(NotInTime, match="not routed within 1 s"):
        await async_wait_routed(timeout=1.0)
    with pytest.raises(NotInTime, match=r"not routed within 0\.5 s"):
        await async_wait_routed(timeout=0.5, fleet=f"{known}-other", connection=nats_server.url)


async def test_who_waits_in_vain_is_told_for_what(known, nats_server):
    """Also where the time was too short for a whole attempt to connect."""
    with pytest.raises(NotInTime, match=r"within 0\.3 s: no NATS server has answered at nats://127\.0\.0\.1:1;"):
        await async_wait_routed(timeout=0.3, connection="nats://127.0.0.1:1")
    with pytest.raises(NotInTime, match="this NATS server has no log of the fleet"):
        await async_wait_routed(timeout=3.0, fleet=f"{known}-other", connection=nats_server.url)


def test_a_fleet_without_a_log_is_told_what_to_do(known, call):
    code, out, err = call("status")
    assert (code, out) == (Exit.FAILED, "")
    assert "stream not found: this NATS server has no log of the fleet; start `rollbook up`" in err


def test_a_url_with_a_token_in_it_is_told_where_the_token_belongs(known, call, monkeypatch):
    """As `.rollbook/nats.url` holds it."""
    monkeypatch.setenv("ROLLBOOK_NATS_URL", "nats://s3cret@127.0.0.1:4222")
    code, _, err = call("status")
    assert code == Exit.USAGE
    assert "ROLLBOOK_NATS_TOKEN" in err
    assert "s3cret" not in err


async def test_a_trainer_waits_in_asyncio_until_a_life_is_gone(nats_client, known):
    """A new life of the worker may be there already."""
    await provision(nats_client, known, timeout=DEADLINE)
    await store(nats_client, known, WorkerUp(worker=W, incarnation=1), registered())
    gone = asyncio.create_task(async_wait_gone(worker=W, incarnation=1, timeout=DEADLINE))
    with pytest.raises(NotInTime, match="0 of 1 gone within 1 s") as caught:
        await async_wait_gone(worker=W, timeout=1.0)
    assert caught.value.missing == {W: "a: registered (life 1, http://10.0.0.1:8000)"}
    assert not gone.done()
    again = WorkerUp(worker=W, incarnation=2), registered(incarnation=2)
    await store(nats_client, known, registered(fact=Deregistered), *again)
    assert (await gone).reached
    with pytest.raises(NotInTime, match="0 of 1 gone"):
        await async_wait_gone(worker=W, timeout=1.0)


def test_a_trainer_that_was_not_told_the_fleet_is_told_so(monkeypatch):
    monkeypatch.delenv("ROLLBOOK_FLEET", raising=False)
    with pytest.raises(RollbookError, match="ROLLBOOK_FLEET is not set"):
        wait_routed()
