"""The notebook page runs as it stands, against a log with recoveries in it."""

import ast
import asyncio
import inspect
import re
import sys
from pathlib import Path

import pytest
from support.nats import DEADLINE

from rollbook.adapters.ids import UuidV7
from rollbook.adapters.jetstream.connection import Connection, connect
from rollbook.adapters.jetstream.log import JetStreamLog
from rollbook.adapters.jetstream.provision import provision
from rollbook.events import Codec, Deregistered, Deregistering, Registered, Registering, WorkerDown, WorkerUp

pytestmark = pytest.mark.integration

PAGE = Path(__file__).resolve().parents[2] / "docs" / "notebook.md"
CELLS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


async def a_run(url, fleet):
    client = await connect(Connection(url=url), name="tests", timeout=DEADLINE)
    await provision(client, fleet, timeout=DEADLINE)
    log, codec, ids = JetStreamLog(client, fleet, timeout=DEADLINE), Codec(fleet), UuidV7()

    async def say(*facts):
        drafts = [codec.draft(one, id=ids.new(), time="2026-11-30T02:40:28.000Z", publisher="test") for one in facts]
        return (await log.append(drafts))[-1]

    # More than polars looks at to guess a column's type.
    await say(*(WorkerUp(worker=f"reward-{number}-0", incarnation=1) for number in range(150)))
    for life in range(1, 5):
        for worker in ("rollout-0-0", "rollout-1-0"):
            at = {"proxy": "a", "worker": worker, "incarnation": life, "url": "http://h:1"}
            up = await say(WorkerUp(worker=worker, incarnation=life))
            await say(Registered(**at, cause=await say(Registering(**at, cause=up))))
            down = await say(WorkerDown(worker=worker, incarnation=life, evidence="exited"))
            await say(Deregistered(**at, cause=await say(Deregistering(**at, cause=down))))
    await client.close()


@pytest.mark.parametrize("frames", ["polars", None])
def test_every_cell_of_the_page_runs(nats_server, fleet, tmp_path, monkeypatch, capsys, frames):
    if frames is not None:
        pytest.importorskip(frames)
    for one in {"polars", "pandas"} - {frames}:
        monkeypatch.setitem(sys.modules, one, None)
    asyncio.run(a_run(nats_server.url, fleet))
    monkeypatch.chdir(tmp_path)
    names = {}

    async def run_all():
        for number, cell in enumerate(CELLS):
            if number == 1:
                names.update(URL=nats_server.url, FLEET=fleet)
            code = compile(cell, f"cell {number}", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            result = eval(code, names)  # noqa: S307 - the page is ours
            if inspect.isawaitable(result):
                await result

    asyncio.run(run_all())
    out = capsys.readouterr().out
    assert "198 facts, 6 recoveries" in out
    assert ("shape: (5, 12)" in out) is (frames is not None)
    assert "a register confirmed" in out
    assert (tmp_path / "recoveries.png").read_bytes().startswith(b"\x89PNG")
    assert "rollout-1-0" in (tmp_path / "run.html").read_text()
