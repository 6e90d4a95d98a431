"""Connecting: reachable or not, with and without JetStream, credentials wanted, refused and never shown."""

import asyncio
import sys
import time

import pytest
from structlog.testing import capture_logs
from support.nats import DEADLINE

from rollbook.adapters.jetstream.api import question
from rollbook.adapters.jetstream.connection import Connection, NotAuthorised, connect
from rollbook.projections.ports import LogError, LogMisconfigured, LogUnavailable

pytestmark = pytest.mark.integration

TOKEN = "s3cret-t0ken"


async def assert_answered(client):
    """The server answers this client, and holds nothing yet."""
    assert (await question(client, "INFO", timeout=DEADLINE))["streams"] == 0


async def test_connects_and_reconnects(start_nats):
    server = start_nats()
    client = await connect(Connection(url=server.url), name="tests", timeout=DEADLINE)
    reconnected = asyncio.Event()
    client.reconnections.add(reconnected.set)
    with capture_logs() as logs:
        server.restart()
        async with asyncio.timeout(DEADLINE):
            await reconnected.wait()
            await client.wait_connected()
    assert {"nats.disconnected", "nats.reconnected"} <= {entry["event"] for entry in logs}
    await client.flush()
    await client.close()


async def test_nobody_answers(start_nats):
    server = start_nats()
    server.kill()
    before = time.monotonic()
    with pytest.raises(LogUnavailable, match=r"no NATS server answered at nats://127\.0\.0\.1:\d+") as error:
        await connect(Connection(url=server.url), name="tests", timeout=0.5)
    assert time.monotonic() - before < DEADLINE
    assert "ROLLBOOK_NATS_URL" in str(error.value)
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_a_server_that_comes_up_in_time_is_waited_for(start_nats):
    server = start_nats()
    server.kill()
    attempt = asyncio.create_task(connect(Connection(url=server.url), name="tests", timeout=DEADLINE))
    done, _ = await asyncio.wait({attempt}, timeout=0.3)
    assert not done
    server.start()
    client = await attempt
    await assert_answered(client)
    await client.close()


async def test_cancelling_the_attempt_leaves_nothing_behind(start_nats):
    server = start_nats()
    server.kill()
    attempt = asyncio.create_task(connect(Connection(url=server.url), name="tests", timeout=60))
    done, _ = await asyncio.wait({attempt}, timeout=0.3)
    assert not done
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


async def test_without_jetstream(start_nats):
    server = start_nats(jetstream="")
    with pytest.raises(LogMisconfigured, match="runs without JetStream; start it with `-js`"):
        await connect(Connection(url=server.url), name="tests", timeout=DEADLINE)


async def test_account_without_jetstream(start_nats):
    accounts = "accounts { WITHOUT { users [ { user: u, password: p } ] } }"
    server = start_nats(config=accounts)
    connection = Connection(url=server.url, user="u", password="p")
    with pytest.raises(LogMisconfigured, match="not enabled for the account"):
        await connect(connection, name="tests", timeout=DEADLINE)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, "asks for credentials and was given none"),
        ({"token": "wr0ng"}, "refused a token"),
        ({"user": "u", "password": "wr0ng"}, "refused user 'u'"),
    ],
)
async def test_credentials_are_wanted(start_nats, given, shown):
    server = start_nats(config=f'authorization {{ token: "{TOKEN}" }}')
    with capture_logs() as logs, pytest.raises(NotAuthorised) as error:
        await connect(Connection(url=server.url, **given), name="tests", timeout=DEADLINE)
    told = str(error.value)
    assert shown in told
    assert "ROLLBOOK_NATS_TOKEN" in told
    assert "wr0ng" not in told + str(logs)


@pytest.mark.parametrize("how", ["field", "url"])
async def test_the_right_token_is_let_in(start_nats, how):
    server = start_nats(config=f'authorization {{ token: "{TOKEN}" }}')
    in_url = Connection(url=f"nats://{TOKEN}@127.0.0.1:{server.port}")
    connection = Connection(url=server.url, token=TOKEN) if how == "field" else in_url
    client = await connect(connection, name="tests", timeout=DEADLINE)
    await assert_answered(client)
    await client.close()


async def test_user_and_password_are_let_in(start_nats):
    server = start_nats(config='authorization { user: u, password: "p@ss/word" }')
    environ = {"ROLLBOOK_NATS_URL": server.url, "ROLLBOOK_NATS_USER": "u", "ROLLBOOK_NATS_PASSWORD": "p@ss/word"}
    client = await connect(Connection.from_env(environ), name="tests", timeout=DEADLINE)
    await assert_answered(client)
    await client.close()


async def test_a_missing_credentials_file_is_named(tmp_path):
    environ = {"ROLLBOOK_NATS_CREDS": str(tmp_path / "none.creds")}
    with pytest.raises(NotAuthorised, match=r"none\.creds; correct ROLLBOOK_NATS_CREDS"):
        await connect(Connection.from_env(environ), name="tests", timeout=1)


async def test_credentials_files_say_what_they_need(start_nats, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nkeys", None)
    (tmp_path / "user.creds").write_text("")
    server = start_nats()
    with pytest.raises(NotAuthorised, match=r"user\.creds needs the package nkeys: pip install nkeys"):
        await connect(Connection(url=server.url, creds=tmp_path / "user.creds"), name="tests", timeout=DEADLINE)


async def test_an_unreadable_authority_is_named(tmp_path):
    (tmp_path / "ca.pem").write_text("garbage")
    environ = {"ROLLBOOK_NATS_CA": str(tmp_path / "ca.pem")}
    with pytest.raises(LogError, match="correct ROLLBOOK_NATS_CA"):
        await connect(Connection.from_env(environ), name="tests", timeout=1)


async def test_something_else_listens_there():
    answering = []

    async def answer(reader, writer):
        answering.append(asyncio.current_task())
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        with pytest.raises(LogUnavailable, match="no NATS server answered"):
            await connect(Connection(url=f"nats://127.0.0.1:{port}"), name="tests", timeout=0.5)
        await asyncio.gather(*answering)


async def test_a_sink_that_raises_does_not_end_the_connection(nats_client):
    took = asyncio.Semaphore(0)

    def broken(subject, reply, payload, headers):
        took.release()
        raise RuntimeError("broken")

    sink = await nats_client.sink(broken)
    with capture_logs() as logs:
        for _ in range(2):
            await nats_client.publish(sink.subject, b"x")
            async with asyncio.timeout(DEADLINE):
                await took.acquire()
    assert [entry["event"] for entry in logs] == ["nats.sink.failed"] * 2
    await sink.close()
