"""The snippets of the trainer's page run as they stand, and what they show is what comes."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from support.stream import FleetStream, in_thread

from rollbook.adapters.publisher import Publisher
from rollbook.events import Deregistered, FleetEnded, Registered, WorkerUp

pytestmark = pytest.mark.integration

PAGE = Path(__file__).resolve().parents[2] / "docs" / "trainer.md"
WAITING, LATE, UPDATING = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
LIVES = {f"rollout-{number}-0": 7 if number == 3 else 1 for number in range(8)}
RESTARTS = "rollout-3-0"


@pytest.fixture
def stream(nats_server, fleet, monkeypatch):
    """The fleet's log, with an environment that names it."""
    monkeypatch.setenv("ROLLBOOK_FLEET", fleet)
    monkeypatch.setenv("ROLLBOOK_NATS_URL", nats_server.url)
    return FleetStream(nats_server.url, fleet).make()


def up(*names):
    return [WorkerUp(worker=name, incarnation=LIVES[name]) for name in names]


def told(kind, *names):
    return [kind(proxy="router-a", worker=name, incarnation=LIVES[name], url=f"http://{name}:1") for name in names]


def test_every_wait_of_the_page_ends_when_it_is_so(stream):
    stream.say(*up(*LIVES), *told(Registered, *LIVES))
    lines, namespace = iter(ast.parse(WAITING).body), {}

    def go_on(lines_of_it):
        for _ in range(lines_of_it):
            code = compile(ast.Module([next(lines)], []), PAGE.name, "exec")
            in_thread(lambda code=code: exec(code, namespace))  # noqa: S102 - the page is ours

    go_on(1 + 3)  # the import, and all that are routed
    stream.say(*told(Deregistered, RESTARTS))
    go_on(1)
    stream.say(FleetEnded(run_id="1"), *told(Deregistered, *LIVES.keys() - {RESTARTS}))
    go_on(1)
    assert next(lines, None) is None


def test_who_is_late_is_told_with_the_reason_on_the_page(stream, capsys):
    *there, _ = LIVES
    stream.say(*up(*LIVES), *told(Registered, *there))
    exec(LATE.replace("timeout=300", "timeout=1"), {})  # noqa: S102 - the page is ours
    assert capsys.readouterr().out.strip() == re.search(r"print\(late\.missing\) +# (.*)", LATE)[1]


async def test_an_update_ends_as_the_page_shows(stream):
    """[I3] one of three restarts in the middle of it."""
    stream.say(*up("rollout-0-0", "rollout-1-0", RESTARTS))
    code = UPDATING.replace("math-rl", stream.fleet).replace("nats://10.0.0.5:4222", stream.url)
    pushed = []

    async def push_weights(worker):
        pushed.append(worker)
        if worker == RESTARTS:
            await publisher.publish(WorkerUp(worker=worker, incarnation=LIVES[worker] + 1))

    async with Publisher(stream.fleet, stream.url, name="recovery") as publisher:
        namespace = {"push_weights": push_weights}
        await eval(compile(code, PAGE.name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), namespace)  # noqa: S307
        await namespace["publisher"].aclose()
    assert pushed == ["rollout-0-0", "rollout-1-0", RESTARTS]
    shown = re.findall(r"^(update\.outcome\.\w+) +# (\(.*?\)|\{.*?\}|True|False)", UPDATING, re.MULTILINE)
    assert len(shown) == 3
    for expression, value in shown:
        assert eval(expression, namespace) == ast.literal_eval(value)  # noqa: S307
