"""deploy/nats-roles.conf on a real nats-server: each role is refused what is not its own."""

import contextlib

import pytest
from support.nats import DEADLINE
from support.roles import FLEET, PASSWORDS, WORKER, W, append, as_role, fleets_stream, messages, server_with_roles

from rollbook.adapters.jetstream.client import NotPermitted
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.events import (
    FleetEnded,
    Registered,
    WorkerCordoned,
    WorkerDown,
    subject_of,
)

pytestmark = pytest.mark.integration

OTHER = "other"
OPERATOR = WorkerCordoned(worker=W, by="mallory", why="because")
OUTCOME = Registered(proxy="router-a", worker=W, incarnation=1, url="http://10.0.0.1:1")
FACTS = {"worker": WORKER, "operator": OPERATOR, "proxy": OUTCOME, "fleet": FleetEnded(run_id="r")}


@pytest.fixture
def server(start_nats, monkeypatch):
    return server_with_roles(start_nats, monkeypatch)


@pytest.fixture
async def stream(server):
    async with fleets_stream(server) as client:
        yield client


MAY_WRITE = {
    "controller": {"worker", "proxy", "fleet"},
    "publisher": {"worker", "fleet"},
    "operator": {"operator", "fleet"},
    "reader": set(),
}


@pytest.mark.parametrize("role", MAY_WRITE)
@pytest.mark.parametrize("family", FACTS)
async def test_each_role_writes_its_own_families_and_no_other(server, stream, role, family):
    fact = FACTS[family]
    before = await messages(stream)
    async with as_role(server, role) as client:
        if family in MAY_WRITE[role]:
            assert await append(client, fact) == [before + 1]
            return
        with pytest.raises(
            NotPermitted, match=rf"does not permit user '{role}' to publish to {subject_of(fact, FLEET)}"
        ):
            await append(client, fact)
    assert await messages(stream) == before


@pytest.mark.parametrize("role", MAY_WRITE)
@pytest.mark.parametrize("family", FACTS)
async def test_no_role_writes_to_another_fleet(server, stream, role, family):
    async with as_role(server, role) as client:
        with pytest.raises(NotPermitted, match=f"rollbook.{OTHER}"):
            await append(client, FACTS[family], OTHER)


STREAMS = (f"ROLLBOOK_{FLEET}", f"KV_ROLLBOOK_{FLEET}_leader", f"OBJ_ROLLBOOK_{FLEET}_snapshots")
CHANGES = (
    *(f"$JS.API.STREAM.{verb}.{{}}" for verb in ("UPDATE", "PURGE", "DELETE", "MSG.DELETE", "SNAPSHOT", "RESTORE")),
    "$JS.API.CONSUMER.CREATE.{}.evil",
    "$JS.API.CONSUMER.CREATE.{}.evil.>",
    "$JS.API.CONSUMER.CREATE.{}",
    "$JS.API.CONSUMER.DURABLE.CREATE.{}.evil",
    "$JS.API.CONSUMER.DELETE.{}.evil",
)


@pytest.mark.parametrize("role", ["publisher", "operator", "reader"])
async def test_nobody_but_the_controller_touches_a_stream_or_makes_a_consumer(server, stream, role):
    async with as_role(server, role) as client:
        for name in STREAMS:
            for pattern in (*CHANGES, "$JS.API.STREAM.CREATE.{}"):
                with pytest.raises(NotPermitted):
                    await client.ask(pattern.format(name), b"{}", timeout=DEADLINE)
        for subject in (f"$KV.ROLLBOOK_{FLEET}_leader.leader", f"$O.ROLLBOOK_{FLEET}_snapshots.M.x", "$JS.ACK.x.y"):
            with pytest.raises(NotPermitted):
                await client.ask(subject, b"mine", timeout=DEADLINE)


async def test_a_controller_cannot_lose_the_log(server, stream):
    for verb in ("PURGE", "DELETE", "MSG.DELETE"):
        with pytest.raises(NotPermitted):
            await stream.ask(f"$JS.API.STREAM.{verb}.ROLLBOOK_{FLEET}", b"{}", timeout=DEADLINE)


@pytest.mark.parametrize("role", ["publisher", "operator", "reader"])
async def test_an_answer_cannot_be_sent_to_where_one_may_not_write(server, stream, role):
    """JetStream answers to any reply subject: in one account, a mere question would write the answer into the log."""
    before = await messages(stream)
    questions = [
        ("$JS.API.INFO", b""),
        (f"$JS.API.STREAM.INFO.ROLLBOOK_{FLEET}", b""),
        (f"$JS.API.STREAM.MSG.GET.ROLLBOOK_{FLEET}", b'{"seq": 1}'),
        (f"$JS.API.DIRECT.GET.ROLLBOOK_{FLEET}", b'{"seq": 1}'),
    ]
    async with as_role(server, role) as client:
        for subject, body in questions:
            for family in FACTS.keys() - MAY_WRITE[role]:
                await client.publish(subject, body, reply=subject_of(FACTS[family], FLEET))
            await client.publish(subject, body, reply=f"$KV.ROLLBOOK_{FLEET}_leader.leader")
        await client.flush(DEADLINE)
        # Each kind is answered in order: when these have come, so have the others.
        for subject, body in questions:
            with contextlib.suppress(NotPermitted):
                await client.ask(subject, body, timeout=DEADLINE)
    # Whatever they wrote would stand before this.
    assert await append(stream, WorkerDown(worker=W, incarnation=1, evidence="exited")) == [before + 1]


@pytest.mark.parametrize("role", ["publisher", "operator", "reader"])
async def test_nobody_listens_to_what_others_say(server, stream, role):
    heard = []
    async with as_role(server, role) as client:
        for subject in (">", f"rollbook.{FLEET}.>", f"rollbook-rpc.{FLEET}.*", "$JS.API.>", "_R_.>"):
            await client.sink(lambda *message: heard.append(message), subject)
        await client.flush(DEADLINE)
        await append(stream, WorkerDown(worker=W, incarnation=1, evidence="exited"))
        await client.flush(DEADLINE)
        # It goes on as before.
        assert await client.ask("$JS.API.INFO", timeout=DEADLINE)
    assert not [message for message in heard if b"rollbook" in message[0]]


async def test_a_role_of_another_password_is_turned_away(server):
    from rollbook.adapters.jetstream.connection import NotAuthorised

    wrong = Connection(url=server.url, user="controller", password=PASSWORDS["reader"])
    with pytest.raises(NotAuthorised, match="refused user 'controller'"):
        await connect(wrong, name="test", timeout=DEADLINE)
