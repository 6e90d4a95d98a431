"""`rollbook log` prints what the log holds, in order, and says what it cannot read or what is gone [I9]."""

import json
import random

import pytest

from rollbook.adapters.cli.exits import UsageError
from rollbook.adapters.cli.lines import resolve_types
from rollbook.adapters.cli.log import print_log
from rollbook.adapters.memory.log import MemoryLog
from rollbook.adapters.memory.snapshots import MemorySnapshots
from rollbook.events import (
    Codec,
    Deregistering,
    Draft,
    DriftFound,
    FleetObserved,
    ObservedWorker,
    Registered,
    WorkerCordoned,
    WorkerDown,
    WorkerUp,
)
from rollbook.projections.history.filters import Filter
from rollbook.projections.history.moments import Moment
from rollbook.projections.history.past import LogPast

FLEET = "math-rl"
ALL = Filter()
FACTS = [
    WorkerUp(worker="rollout-3-0", incarnation=8, seen=3),
    WorkerDown(worker="rollout-3-0", incarnation=8, evidence="timeout", reason="no answer in 5 s"),
    WorkerUp(worker="rollout-4-0", incarnation=1),
    Registered(proxy="router-a", worker="rollout-4-0", incarnation=1, url="http://h:1", cause=3),
    WorkerCordoned(worker="rollout-4-0", by="ann", why="ECC errors"),
    FleetObserved(observer="ray", pools=("rollout",), as_of=4, workers=(ObservedWorker("rollout-4-0", 1, False),)),
    DriftFound(proxy="router-a", missing=("rollout-4-0",), foreign=("http://x:1",)),
]


class Clock:
    """One second later at every look."""

    def __init__(self):
        self.time = 1_000_000.0

    def now(self):
        self.time += 1
        return self.time

    def monotonic(self):
        return self.time

    async def sleep(self, seconds):
        raise AssertionError("nothing to wait for")


def draft(number, fact):
    return Codec(FLEET).draft(fact, id=f"id-{number}", time="2026-11-30T02:40:28.123Z", publisher="trainer-1")


@pytest.fixture
async def log():
    log = MemoryLog(Clock(), random.Random(1))
    for number, fact in enumerate(FACTS, 1):
        await log.append([draft(number, fact)])
    return log


async def printed(capsys, log, wanted=ALL, *, begin=None, end=None, json=False):
    await print_log(log, LogPast(log, MemorySnapshots()), Codec(FLEET), wanted, begin, end, json=json)
    return capsys.readouterr()


async def test_one_line_for_each_fact(capsys, log):
    lines = (await printed(capsys, log)).out.splitlines()
    assert [" ".join(line.split()) for line in lines] == [
        "1 1970-01-12T13:46:41.000Z rollout-3-0 worker.up incarnation=8 by trainer-1",
        (
            "2 1970-01-12T13:46:42.000Z rollout-3-0 worker.down incarnation=8 evidence=timeout "
            'reason="no answer in 5 s" by trainer-1'
        ),
        "3 1970-01-12T13:46:43.000Z rollout-4-0 worker.up incarnation=1 by trainer-1",
        (
            "4 1970-01-12T13:46:44.000Z router-a proxy.registered worker=rollout-4-0 incarnation=1 url=http://h:1 "
            "by trainer-1"
        ),
        '5 1970-01-12T13:46:45.000Z rollout-4-0 operator.worker_cordoned why="ECC errors" by ann through trainer-1',
        (
            "6 1970-01-12T13:46:46.000Z fleet fleet.observed observer=ray pools=rollout as_of=4 "
            "workers=rollout-4-0#1(starting) by trainer-1"
        ),
        "7 1970-01-12T13:46:47.000Z router-a proxy.drift_found missing=rollout-4-0 foreign=http://x:1 by trainer-1",
    ]


@pytest.mark.parametrize(
    ("wanted", "sequences"),
    [
        (Filter(worker="rollout-3-0"), [1, 2]),
        (Filter(worker="rollout-4-0"), [3, 4, 5, 6, 7]),
        (Filter(types=resolve_types(["worker.up"])), [1, 3]),
        (Filter(types=resolve_types(["WorkerDown", "rollbook.fleet.observed.v1"])), [2, 6]),
        (Filter(worker="rollout-3-0", types=resolve_types(["worker.up"])), [1]),
        (Filter(worker="nobody"), []),
        (Filter(proxy="router-a"), [4, 7]),
        (Filter(proxy="router-b"), []),
        (Filter(proxy="router-a", worker="rollout-4-0"), [4, 7]),
        (Filter(operator="ann"), [5]),
        (Filter(operator="ann", types=resolve_types(["worker.up"])), []),
        (Filter(incarnation=8), [1, 2]),
        (Filter(incarnation=1), [3, 4, 6]),
        (Filter(pool="rollout"), [1, 2, 3, 4, 5, 6, 7]),
        (Filter(pool="reward"), []),
        (Filter(cell="3"), [1, 2]),
        (Filter(pool="rollout", cell="4"), [3, 4, 5, 6, 7]),
    ],
)
async def test_only_what_is_wanted(capsys, log, wanted, sequences):
    lines = (await printed(capsys, log, wanted)).out.splitlines()
    assert [int(line.split()[0]) for line in lines] == sequences


async def test_since_starts_at_the_first_fact_of_that_time(capsys, log):
    lines = (await printed(capsys, log, begin=Moment(time=1_000_005.5))).out.splitlines()
    assert [int(line.split()[0]) for line in lines] == [6, 7]
    past = LogPast(log, MemorySnapshots())
    assert await past.first_at(0.0) == 1
    assert await past.first_at(2_000_000.0) == 8


async def test_a_range_of_sequences_and_of_times(capsys, log):
    by_sequence = await printed(capsys, log, begin=Moment(sequence=3), end=Moment(sequence=5))
    by_time = await printed(capsys, log, begin=Moment(time=1_000_003.0), end=Moment(time=1_000_005.0))
    assert [int(line.split()[0]) for line in by_sequence.out.splitlines()] == [3, 4, 5]
    assert by_time == by_sequence


async def test_json_is_what_is_stored(capsys, log):
    lines = (await printed(capsys, log, json=True)).out.splitlines()
    assert [line.encode() for line in lines] == [draft(n, fact).payload for n, fact in enumerate(FACTS, 1)]


async def test_json_that_is_stored_over_several_lines_is_one_line(capsys, log):
    pretty = json.dumps(json.loads(draft(9, FACTS[0]).payload), indent=2).encode()
    await log.append([Draft(draft(9, FACTS[0]).subject, "id-9", pretty)])
    last = (await printed(capsys, log, json=True)).out.splitlines()[-1]
    assert json.loads(last) == json.loads(pretty)


async def test_what_is_no_fact_is_shown_as_such_without_its_payload(capsys, log):
    await log.append([Draft(f"rollbook.{FLEET}.worker.rollout-3-0", "x", b"hunter2\x1b[31m")])
    last = (await printed(capsys, log)).out.splitlines()[-1]
    assert " ".join(last.split()).startswith("8 1970-01-12T13:46:48.000Z rollout-3-0 no fact not_json")
    assert "hunter2" not in last
    assert "\x1b" not in last

    told = await printed(capsys, log, json=True)
    assert len(told.out.splitlines()) == 7
    assert told.err.startswith(f"sequence 8 on rollbook.{FLEET}.worker.rollout-3-0 is no fact: not_json")
    assert len((await printed(capsys, log, Filter(worker="rollout-3-0"))).out.splitlines()) == 3
    assert len((await printed(capsys, log, Filter(types=resolve_types(["worker.up"])))).out.splitlines()) == 2


async def test_a_fact_of_a_later_version_is_shown_with_its_data(capsys, log):
    payload = (
        b'{"specversion":"1.0","id":"a","source":"rollbook://math-rl/t","type":"rollbook.worker.danced.v3",'
        b'"data":{"tune":"waltz"},"subject":"rollout-3-0"}'
    )
    await log.append([Draft(f"rollbook.{FLEET}.worker.rollout-3-0", "y", payload)])
    last = (await printed(capsys, log)).out.splitlines()[-1]
    assert "worker.danced" in last
    assert "waltz" in last
    assert "a type that this version does not know" in last


async def test_text_from_outside_cannot_change_the_terminal(capsys, log):
    await log.append([draft(9, WorkerDown(worker="w", incarnation=1, evidence="exited", reason="\x1b[2J\nfake line"))])
    out = (await printed(capsys, log)).out
    assert len(out.splitlines()) == 8
    assert "\x1b" not in out


async def test_nor_can_a_type_a_publisher_or_a_subject(capsys, log):
    payload = {
        "specversion": "1.0",
        "id": "a",
        "source": "rollbook://math-rl/\x1b[31m",
        "type": "\x1b[31mred\nfake line",
        "data": {},
        "subject": "rollout-3-0",
    }
    await log.append([Draft(f"rollbook.{FLEET}.worker.rollout-3-0", "y", json.dumps(payload).encode())])
    await log.append([Draft(f"rollbook.{FLEET}.worker.\x1b[31m", "z", b"?")])
    out = (await printed(capsys, log)).out
    assert len(out.splitlines()) == 9
    assert "\x1b" not in out


def test_an_unknown_type_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match=r"there is no fact 'wroker\.up'; did you mean worker\.up\?"):
        resolve_types(["wroker.up"])


def test_every_fact_can_be_named_both_ways():
    assert resolve_types(["proxy.deregistering"]) == resolve_types([Deregistering.__name__])
