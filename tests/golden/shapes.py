"""One example of every JSON document that commands print and the controller answers, and the files that hold them.

The files are the promise to whoever parses them: a field may come, none may go or change its meaning. After adding a
document or a field, delete its file and write it anew with `python tests/golden/shapes.py`; say so in the changelog.
"""

import json
import sys
from pathlib import Path

import msgspec

from rollbook.adapters.doctor.findings import Examination, Finding, State
from rollbook.adapters.service.messages import Info, Problem, Reconciled, Step
from rollbook.projections.decisions import DecisionStatus
from rollbook.projections.preview import Change, Line, Preview, Was
from rollbook.projections.saved import save
from rollbook.projections.status import FleetStatus, ProxyStatus, RegistrationStatus, Standing, WorkerStatus
from rollbook.projections.verification import Answerer, ProxyVerification, Verdict, Verification
from rollbook.projections.waiting import Progress

FOLDER = Path(__file__).parent / "json"
TIME = "2026-01-01T00:00:00.000000Z"
A = "http://10.0.0.1:8000"
B = "http://10.0.0.2:8000"

_STATUS = FleetStatus(
    fleet="math-rl",
    sequence=42,
    time=TIME,
    converged=True,
    workers=(
        WorkerStatus(
            name="rollout-0-0",
            pool="rollout",
            cell="0",
            rank=0,
            incarnation=2,
            phase="serving",
            since=TIME,
            address="10.0.0.1:8000",
            suspicion=None,
            registrations=(RegistrationStatus("router-a", Standing.REGISTERED, A, None, None),),
        ),
        WorkerStatus(
            name="rollout-1-0",
            pool="rollout",
            cell="1",
            rank=0,
            incarnation=1,
            phase="serving",
            since=TIME,
            address="10.0.0.2:8000",
            suspicion=None,
            registrations=(
                RegistrationStatus("router-a", Standing.OUT, None, "not_cordoned", "cordoned by ann@host: slow"),
            ),
        ),
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
    notes=("no controller runs: the proxies were asked from here",),
)

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
