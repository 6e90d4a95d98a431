"""The settings of a connection: what the environment says, and that a secret is never shown."""

from pathlib import Path

import pytest

from rollbook.adapters.jetstream.connection import Connection
from rollbook.projections.ports import LogError


def test_reads_the_environment():
    connection = Connection.from_env(
        {
            "ROLLBOOK_NATS_URL": "tls://a:1,tls://b:2",
            "ROLLBOOK_NATS_TOKEN": "t",
            "ROLLBOOK_NATS_CREDS": "/c",
            "ROLLBOOK_NATS_NKEY": "/n",
            "ROLLBOOK_NATS_CA": "/ca",
        }
    )
    assert connection.url == "tls://a:1,tls://b:2"
    assert connection.token == "t"
    assert [str(connection.creds), str(connection.nkey), str(connection.ca)] == ["/c", "/n", "/ca"]


def test_an_empty_environment_means_the_usual_address():
    assert Connection.from_env({"ROLLBOOK_NATS_URL": ""}) == Connection()
    assert Connection().url == "nats://127.0.0.1:4222"


@pytest.mark.parametrize(
    "given",
    [
        {"url": "nats://hidden@host:1"},
        {"url": "nats://user:hidden@host:1"},
        {"url": "nats://user:hid%64en@host:1,nats://user:hid%64en@other:2"},
        {"url": "host:1", "token": "hidden"},
        {"url": "host:1", "user": "user", "password": "hidden"},
    ],
)
def test_a_secret_is_never_shown(given):
    connection = Connection(**given)
    assert "hidden" in (connection.token, connection.password)
    assert "hidden" not in f"{connection} {connection!r} {connection.url} {connection.authentication}"
    assert connection.url.startswith("nats://host:1")


@pytest.mark.parametrize("url", ["http://hidden@host", "nats://hidden@host:x1", "nats://", "nats://user:hidden@:4222"])
def test_a_wrong_url_is_refused_without_its_secret(url):
    with pytest.raises(LogError) as error:
        Connection(url=url)
    assert "hidden" not in str(error.value)


@pytest.mark.parametrize(
    "connection",
    [
        Connection(url="nats://t%40ken@host:1"),
        Connection(url="nats://a,nats://b", user="u", password="p"),
        Connection(creds=Path("/c"), ca=Path("/ca")),
        Connection(nkey=Path("/n")),
    ],
)
def test_goes_to_a_worker_through_its_environment(connection):
    assert Connection.from_env(connection.environ()) == connection


@pytest.mark.parametrize(
    "connection",
    [
        Connection(url="nats://host:1"),
        Connection(url="nats://hidden@host:1"),
        Connection(url="nats://user:hid%64en@host:1,nats://other:2"),
        Connection(creds=Path("a.creds"), ca=Path("ca.pem")),
        Connection(nkey=Path("seed")),
    ],
)
def test_the_environment_makes_the_same_connection_again(connection):
    assert Connection.from_env(connection.environ()) == connection
