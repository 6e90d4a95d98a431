"""One example of every JSON document that commands print and the controller answers, and the files that hold them.

The files are the promise to whoever parses them: a field may come, none may go or change its meaning. After adding a
document or a field, delete its file and write it anew with `python tests/golden/shapes.py`; say so in the changelog.
"""

import json
import sys
from pathlib import Path

import msgspec

from rollbook.adapters.archive.importing import Imported
from rollbook.adapters.archive.trimming import Archived
from rollbook.adapters.archive.writing import Written
from rollbook.adapters.cli.replay import Took
from rollbook.adapters.doctor.findings import Examination, Finding, State
from rollbook.adapters.service.messages import Info, Problem, Reconciled, Step
from rollbook.events import Registered, Registering, WorkerDown, WorkerUp
from rollbook.projections.history import narrative
from rollbook.projections.history.difference import Changed, Deed, Difference, Item
from rollbook.projections.history.otherwise import Otherwise
from rollbook.projections.history.replay import Check, Replayed
from rollbook.projections.history.view import FleetThen, ProxyThen, RegistrationThen, WorkerThen
from rollbook.projections.looking.preview import Change, Line, Preview, Was
from rollbook.projections.looking.saved import save
from rollbook.projections.looking.status import FleetStatus, ProxyStatus, RegistrationStatus, Standing, WorkerStatus
from rollbook.projections.looking.verification import Answerer, ProxyVerification, Verdict, Verification
from rollbook.projections.looking.waiting import Progress
from rollbook.projections.state.decisions import DecisionStatus
from rollbook.projections.state.transitions import STALE
from rollbook.projections.state.worker import Decision

FOLDER = Path(__file__).parent / "json"
TIME = "2026-01-01T00:00:00.000000Z"
A = "http://10.0.0.1:8000"
B = "http://10.0.0.2:8000"


def _worker(number: int, incarnation: int, registration: RegistrationStatus) -> WorkerStatus:
    """One of the first pool that serves, alone in its cell."""
    return WorkerStatus(
        name=f"rollout-{number}-0",
        pool="rollout",
        cell=str(number),
        rank=0,
        incarnation=incarnation,
        phase="serving",
        since=TIME,
        address=f"10.0.0.{number + 1}:8000",
        suspicion=None,
        registrations=(registration,),
        weights=1200,
    )


_STATUS = FleetStatus(
    fleet="math-rl",
    sequence=42,
    time=TIME,
    converged=True,
    workers=(
        _worker(0, 2, RegistrationStatus("router-a", Standing.REGISTERED, A, None, None)),
        _worker(1, 1, RegistrationStatus("router-a", Standing.OUT, None, "not_cordoned", "cordoned by ann@host: slow")),
    ),
    proxies=(
        ProxyStatus(
            name="router-a",
            kind="sglang",
            reachable=True,
            reason=None,
            registered=1,
            wanted=1,
            foreign=("http://10.0.0.9:8000",),
            version="0.3",
        ),
    ),
    decisions=(DecisionStatus("cordon", "rollout-1-0", "ann@host", "slow", 41),),
    controller="controller-host-1234",
    weights={"rollout": 1200},
)

_PREVIEW = Preview(
    fleet="math-rl",
    sequence=42,
    time=TIME,
    lines=(
        Line(
            change=Change.REGISTER,
            proxy="router-a",
            worker="rollout-0-0",
            incarnation=1,
            url=A,
            reason="belongs here, is not listed",
        ),
        Line(
            change=Change.REPLACE,
            proxy="router-a",
            worker="rollout-1-0",
            incarnation=3,
            url=B,
            reason="superseded by incarnation 3",
            was=(Was(2, B),),
        ),
        Line(
            change=Change.WITHHELD,
            proxy="router-a",
            worker="rollout-2-0",
            incarnation=1,
            url=None,
            reason="GET /health answers 503",
            would=Change.REGISTER,
            gate="ready",
        ),
        Line(
            change=Change.FOREIGN,
            proxy="router-a",
            worker=None,
            incarnation=None,
            url="http://10.0.0.9:8000",
            reason="Rollbook did not put it there",
        ),
    ),
    unreachable={"router-b": "router-b: list: no answer within 5 s"},
    unrecorded=1,
    notes=("no controller answered: the proxies were asked from here",),
)

_CORDON = Decision("ann@host", "slow", 45)

_THEN = FleetThen(
    fleet="math-rl",
    sequence=45,
    time=TIME,
    run_id="run-42",
    ended=False,
    weights={"rollout": 1200},
    workers=(
        WorkerThen(
            name="rollout-0-0",
            pool="rollout",
            cell="0",
            rank=0,
            entrypoint=True,
            incarnation=2,
            phase="serving",
            since_sequence=41,
            since=TIME,
            evidence=None,
            reason="",
            suspicion=None,
            suspended=None,
            cordon=_CORDON,
            weights=1200,
            registrations=(RegistrationThen("router-a", "rollout-0-0", 2, "registered", A, 43, TIME, ""),),
        ),
    ),
    proxies=(
        ProxyThen(
            name="router-a",
            reachable=True,
            since=TIME,
            reason="",
            version="0.3",
            owner="controller-host-1234",
            epoch=7,
            held=None,
            registered=1,
            foreign=("http://10.0.0.9:8000",),
        ),
    ),
    lost=(RegistrationThen("router-a", "rollout-9-0", 1, "failed", B, 12, TIME, "no answer within 5 s"),),
    unreadable=1,
)

_DIFFERENCE = Difference(
    fleet="math-rl",
    before=40,
    after=45,
    workers=(
        Item(
            name="rollout-0-0",
            changes=(Changed("life", "1", "2"), Changed("suspended", "weight update", None)),
            facts=(Deed(41, 1767225600.5, "rollbook.worker.up.v1", "rollbook://math-rl/trainer"),),
            more_facts=3,
        ),
    ),
    proxies=(Item(name="router-a", changes=(Changed("registered", "0", "1"),)),),
    whole=Item(name="math-rl", changes=(Changed("run", None, "run-42"),)),
)

_IN = narrative.Verdict("router-a", (narrative.GateAnswer("not_forgotten", passed=True),))
_OUT = narrative.Verdict("router-a", (narrative.GateAnswer("serving", passed=False, reason="down (exited)"),))

_STORY = narrative.Narrative(
    fleet="math-rl",
    worker="rollout-0-0",
    sequence=44,
    phase="serving",
    incarnation=2,
    lives=(
        narrative.Life(
            incarnation=2,
            events=(
                narrative.Event(
                    sequence=41,
                    stored_at=1767225600.5,
                    type="rollbook.worker.up.v1",
                    about="rollout-0-0",
                    source="rollbook://math-rl/trainer",
                    fact=WorkerUp(worker="rollout-0-0", incarnation=2),
                    effects=("life 2 begins", "absent \u2192 serving"),
                    verdicts=(_IN,),
                ),
                narrative.Event(
                    sequence=42,
                    stored_at=1767225600.75,
                    type="rollbook.proxy.registering.v1",
                    about="router-a",
                    source="rollbook://math-rl/controller-host-1234",
                    fact=Registering(proxy="router-a", worker="rollout-0-0", incarnation=2, url=A, cause=41),
                    effects=(),
                    step=narrative.Step(cause=41, because=41, seconds=0.25),
                ),
                narrative.Event(
                    sequence=43,
                    stored_at=1767225601.75,
                    type="rollbook.proxy.registered.v1",
                    about="router-a",
                    source="rollbook://math-rl/controller-host-1234",
                    fact=Registered(proxy="router-a", worker="rollout-0-0", incarnation=2, url=A, cause=42),
                    effects=(),
                    step=narrative.Step(cause=42, because=42, seconds=1.0, slowest=True),
                ),
                narrative.Event(
                    sequence=44,
                    stored_at=1767225602.0,
                    type="rollbook.worker.down.v1",
                    about="rollout-0-0",
                    source="rollbook://math-rl/monitor-a",
                    fact=WorkerDown(worker="rollout-0-0", incarnation=1, evidence="exited", reason="code 1"),
                    effects=(),
                    ignored=STALE,
                    superseded_by=41,
                ),
            ),
        ),
    ),
    passages=(
        narrative.Passage(
            proxy="router-a",
            incarnation=2,
            action="register",
            cause=41,
            because=41,
            decided=42,
            answered=43,
            result="confirmed",
            to_decide=0.25,
            to_answer=1.0,
            in_all=1.25,
        ),
    ),
    now=(narrative.StandsNow(_IN, "registered", A, "", 43, None), narrative.StandsNow(_OUT, None, None, "", 0, "held")),
    notes=("told from sequence 40 on: what is older was archived, and --archive reads it",),
)

_REPLAYED = Took(
    replayed=Replayed(
        fleet="math-rl",
        first=1,
        sequence=45,
        digest="5f2c",
        facts=45,
        unreadable=1,
        unknown={"rollbook.worker.moved.v1": 2},
        checks=(
            Check("controller-host-1234", 45, "5f2c", "5f2c"),
            Check("snapshot", 30, "90ab", None, skipped="it is damaged"),
            Check("snapshot", 40, "77aa", "13de", worker=Item("rollout-0-0", (Changed("phase", "down", "serving"),))),
        ),
    ),
    seconds=0.5,
    otherwise=(Otherwise("router-a", "rollout-0-0", 2, registered=True, was=None, would="serving: down (exited)"),),
)

_WRITTEN = Written(path="math-rl.jsonl.zst", first=1, last=45, digest="5f2c", size=4096)

_NOTHING_LEFT = Preview(fleet="math-rl", sequence=45, time=TIME, lines=())

DOCUMENTS = {
    "status": _STATUS,
    "plan": _PREVIEW,
    "plan-file": save(msgspec.structs.replace(_PREVIEW, unreachable={}), None),
    "reconcile": Reconciled(
        finished=True,
        steps=(
            Step(outcome="registered", proxy="router-a", worker="rollout-0-0", incarnation=1, url=A, sequence=44),
            Step(
                outcome="failed",
                proxy="router-a",
                worker="rollout-1-0",
                incarnation=3,
                url=B,
                sequence=45,
                reason="register: not seen within 10 s",
            ),
        ),
        left=_NOTHING_LEFT,
    ),
    "wait": Progress(
        reached=False,
        there=("rollout-0-0",),
        missing={"rollout-1-0": "not registered at router-a yet"},
        wanted=2,
        sequence=42,
    ),
    "verify": Verification(
        fleet="math-rl",
        sequence=42,
        time=TIME,
        proxies=(
            ProxyVerification(
                proxy="router-a",
                kind="sglang",
                listed=2,
                drift=(
                    Line(
                        change=Change.DEREGISTER,
                        proxy="router-a",
                        worker="rollout-1-0",
                        incarnation=1,
                        url=B,
                        reason="serving: down (exited)",
                    ),
                ),
                url="http://10.0.0.9:30000/generate",
                sent=8,
                failed={"it answered 503: no worker": 1},
                answered=(
                    Answerer(
                        worker="rollout-1-0",
                        incarnation=1,
                        requests=3,
                        verdict=Verdict.DEAD,
                        how="said so",
                        reason="serving: down (exited)",
                    ),
                    Answerer(worker="rollout-0-0", incarnation=2, requests=4, verdict=Verdict.RIGHT, how="said so"),
                ),
            ),
        ),
    ),
    "doctor": Examination(
        healthy=False,
        checks=(
            Finding("nats", State.OK, "nats://10.0.0.5:4222 answers in 0.4 ms, as user 'reader'; nats-server 2.15.1"),
            Finding(
                "proxy router-a",
                State.FAILED,
                "router-a: GET http://10.0.0.9:30000/workers answered 401: it refuses the key in api_key",
                "correct the key that api_key of proxies.router-a refers to; the router was started with another",
            ),
        ),
    ),
    "status-at": _THEN,
    "diff": _DIFFERENCE,
    "explain": _STORY,
    "replay": _REPLAYED,
    "export": _WRITTEN,
    "import": Imported(first=1, last=45, digest="5f2c", already=0),
    "archive": Archived(cut=41, file=_WRITTEN, forgotten=30, kept=10),
    "info": Info(
        fleet="math-rl",
        owner="controller-host-1234",
        epoch=7,
        sequence=42,
        version="0.1.0",
        since=TIME,
        uptime_seconds=12.5,
        proxies={"router-a": ("rollout",)},
    ),
    "problem": Problem("usage", "there is no proxy 'router-x'; there is: router-a"),
}
"""By the name of its file."""

PAGES = {
    "status-at": "history.md",
    "diff": "history.md",
    "explain": "history.md",
    "replay": "history.md",
    "export": "archive.md",
    "import": "archive.md",
    "archive": "archive.md",
}
"""Which page shows it, if not cli.md."""


def text(document: object) -> str:
    """As the file holds it: what is printed on one line, over several."""
    return json.dumps(msgspec.to_builtins(document), indent=2, ensure_ascii=False) + "\n"


def path_of(name: str) -> Path:
    return FOLDER / f"{name}.json"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, document in DOCUMENTS.items():
        if not path_of(name).exists():
            path_of(name).write_text(text(document))
            sys.stdout.write(f"{path_of(name)}\n")
