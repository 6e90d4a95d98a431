"""Log lines: for people on a terminal, JSON elsewhere, and never a secret in them."""

import io
import json
import logging

import pytest
import structlog

from rollbook.adapters import logs


class Terminal(io.StringIO):
    def isatty(self):
        return True


def written(stream, environ=None, **options):
    logs.configure(environ=environ or {}, stream=stream, **options)
    structlog.get_logger().info("proxy.register.failed", proxy="router-a", worker="rollout-3-0")
    return stream.getvalue()


def test_json_where_no_person_looks():
    line = json.loads(written(io.StringIO()))
    assert line.pop("time").endswith("Z")
    assert line == {"event": "proxy.register.failed", "level": "info", "proxy": "router-a", "worker": "rollout-3-0"}


def test_for_people_on_a_terminal_in_colour_unless_they_want_none():
    assert "\x1b[" in written(Terminal())
    plain = written(Terminal(), {"NO_COLOR": "1"})
    assert "\x1b[" not in plain
    assert "proxy.register.failed" in plain


def test_the_format_can_be_forced():
    assert "\x1b[" not in written(io.StringIO(), format="console")
    assert json.loads(written(Terminal(), format="json"))


def test_below_the_level_nothing_is_written():
    assert written(io.StringIO(), level="warning") == ""


def test_libraries_speak_through_the_same_lines_from_a_warning_on():
    stream = io.StringIO()
    logs.configure(environ={}, stream=stream, level="debug")
    logging.getLogger("nats").info("not this")
    logging.getLogger("nats").warning("lost %s", "nats://me:hunter2@h:4222")
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert (line["event"], line["library"], line["level"]) == ("lost nats://[redacted]@h:4222", "nats", "warning")


@pytest.mark.parametrize("shape", ["json", "console"])
def test_secrets_are_taken_out_wherever_they_stand(shape):
    stream = io.StringIO()
    logs.configure(environ={}, stream=stream, format=shape)
    log = structlog.get_logger()
    hunter2 = "hunter2hunter2"
    try:
        int(f"http://me:{hunter2}@h")
    except ValueError:
        log.exception(
            "call.failed",
            api_key=hunter2,
            nats={"url": f"nats://{hunter2}@h", "token": hunter2, "list": [{"Password": hunter2}]},
            headers={"Authorization": f"Bearer {hunter2}"},
            line=f"Authorization: Bearer {hunter2}",
            url=f"http://h/x?api_key={hunter2}&a=1",
            apiKey=hunter2,
        )
    assert "hunter2" not in stream.getvalue()
    assert "ValueError" in stream.getvalue()


@pytest.mark.parametrize(
    ("key", "secret"),
    [
        ("token", True),
        ("nats_token", True),
        ("X-Api-Key", True),
        ("privateKey", True),
        ("clientSecret", True),
        ("max_tokens", False),
        ("tokens", False),
        ("key", False),
        ("worker", False),
        ("author", False),
    ],
)
def test_a_key_is_secret_by_its_words(key, secret):
    assert logs.is_secret(key) is secret
