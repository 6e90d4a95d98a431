"""The demo's judgement on hand-made runs: a good one, and one for every way in which a run can be bad."""

from __future__ import annotations

import msgspec
import pytest

from rollbook.adapters.demo.records import Disturbance, Fall, Foreign, Kill, Listed, Request, RouterRestart, Run
from rollbook.adapters.demo.report import Report, judge
from rollbook.adapters.demo.text import render
from rollbook.events import (
    Codec,
    Deregistered,
    Deregistering,
    DriftFound,
    Evidence,
    Fact,
    LeadershipTaken,
    Registered,
    Registering,
    RegistrationFailed,
    WorkerDown,
    WorkerStarted,
    WorkerUp,
)
from rollbook.events.times import rfc3339
from rollbook.projections.policy import Policy, PoolPolicy, ProxyPolicy
from rollbook.projections.ports import Stored
from rollbook.projections.state.fold import State

FLEET, PROXY, A, B = "demo", "router", "rollout-0-0", "rollout-1-0"
URL_A, URL_B = "http://127.0.0.1:8000", "http://127.0.0.1:8001"
CODEC = Codec(FLEET)
BEGAN = 1_000.0
LEADER, OTHER = "controller-one-1", "controller-two-2"
FOREIGN = "http://127.0.0.1:9999"
POLICY = Policy(
    fleet=FLEET,
    pools={"rollout": PoolPolicy()},
    proxies={PROXY: ProxyPolicy(name=PROXY, pools=("rollout",))},
)


class Log:
    """Facts put into a log one after the other, each at its moment after the run's beginning."""

    def __init__(self) -> None:
        self.messages: list[Stored] = []

    def add(self, at: float, fact: Fact, by: str = LEADER) -> int:
        sequence = len(self.messages) + 1
        draft = CODEC.draft(fact, id=f"id-{sequence}", time=rfc3339(BEGAN + at), publisher=by)
        self.messages.append(Stored(sequence, draft.subject, draft.payload, BEGAN + at))
        return sequence

    def lead(self, at: float, owner: str = LEADER, epoch: int = 1) -> None:
        self.add(at, LeadershipTaken(proxy=PROXY, owner=owner, epoch=epoch), by=owner)

    def up(self, at: float, worker: str, incarnation: int) -> None:
        self.add(at, WorkerStarted(worker=worker, incarnation=incarnation))
        self.add(at, WorkerUp(worker=worker, incarnation=incarnation, seen=len(self.messages)))

    def down(self, at: float, worker: str, incarnation: int, evidence: Evidence = "actor_dead") -> None:
        self.add(at, WorkerDown(worker=worker, incarnation=incarnation, evidence=evidence))

    def register(self, at: float, worker: str, incarnation: int, url: str, took: float = 0.05) -> None:
        about = {"proxy": PROXY, "worker": worker, "incarnation": incarnation, "url": url}
        intent = self.add(at, Registering(**about))
        self.add(at + took, Registered(**about, cause=intent))

    def deregister(self, at: float, worker: str, incarnation: int, url: str) -> None:
        about = {"proxy": PROXY, "worker": worker, "incarnation": incarnation, "url": url}
        intent = self.add(at, Deregistering(**about))
        self.add(at + 0.01, Deregistered(**about, cause=intent))

    def digest(self) -> str:
        state = State()
        for stored in self.messages:
            state.apply(stored, CODEC)
        return state.digest()


def good_log() -> Log:
    """Both serve; A is killed at 5.0 and comes back as its second life on the same URL."""
    log = Log()
    log.lead(-2.0)
    for worker, url in ((A, URL_A), (B, URL_B)):
        log.up(-1.0, worker, 1)
        log.register(-0.5, worker, 1, url)
    log.down(5.02, A, 1)
    log.deregister(5.03, A, 1, URL_A)
    log.up(6.5, A, 2)
    log.register(6.6, A, 2, URL_A)
    return log


def request(sent: float, worker: str = A, incarnation: int = 1, took: float = 0.05) -> Request:
    return Request(
        sent=BEGAN + sent, done=BEGAN + sent + took, worker=worker, incarnation=incarnation, pid=10 + incarnation
    )


def run_of(log: Log, /, **changed) -> Run:
    run = Run(
        policy=POLICY,
        proxy=PROXY,
        seed=7,
        workers=(A, B),
        began=BEGAN,
        ended=BEGAN + 10,
        kills_wanted=1,
        kills=(Kill(worker=A, incarnation=1, pid=11, at=BEGAN + 5, port_taken=False),),
        restarts=(),
        requests=(request(1), request(2, B), request(7, A, 2)),
        log=tuple(log.messages),
        live_sequence=len(log.messages),
        live_digest=log.digest(),
        listed=(
            Listed(url=URL_A, worker=A, incarnation=2, answers=(A, 2)),
            Listed(url=URL_B, worker=B, incarnation=1, answers=(B, 1)),
        ),
    )
    return msgspec.structs.replace(run, **changed)


def broken(report: Report) -> dict[str, tuple[str, ...]]:
    assert report.passed is not any(check.broken for check in report.checks)
    assert all(check.held is not bool(check.broken) for check in report.checks)
    return {check.name: check.broken for check in report.checks if check.broken}


def only(report: Report, name: str) -> str:
    """The one line of the one check that broke."""
    found = broken(report)
    assert list(found) == [name]
    [line] = found[name]
    return line


def test_a_good_run_passes_with_its_times() -> None:
    report = judge(run_of(good_log()))
    assert broken(report) == {}
    [kill] = report.kills
    assert (kill.worker, kill.incarnation, kill.same_url, kill.was_registered) == (A, 1, True, True)
    assert (kill.at, kill.down, kill.deregistered) == pytest.approx((5.0, 0.02, 0.04))
    assert (kill.registered, kill.served) == pytest.approx((1.65, 2.05))
    assert (report.requests.sent, report.requests.failed, report.requests.wrong) == (3, 0, 0)
    assert report.registered == {A: 2, B: 1}
    assert report.sequence == report.facts == len(good_log().messages)


def test_another_url_is_seen() -> None:
    log = good_log()
    log.messages = log.messages[:-2]
    log.register(6.6, A, 2, "http://127.0.0.1:9000")
    listed = run_of(log).listed
    moved = msgspec.structs.replace(listed[0], url="http://127.0.0.1:9000")
    [kill] = judge(run_of(log, listed=(moved, listed[1]))).kills
    assert kill.same_url is False


def test_a_victim_that_was_not_registered_need_not_be_deregistered() -> None:
    log = good_log()
    log.down(7.5, A, 2)
    log.up(8.0, A, 3)
    log.down(8.2, A, 3)
    log.deregister(8.3, A, 2, URL_A)
    log.up(9.0, A, 4)
    log.register(9.1, A, 4, URL_A)
    run = run_of(log)
    report = judge(
        run_of(
            log,
            kills_wanted=3,
            kills=(
                *run.kills,
                Kill(worker=A, incarnation=2, pid=12, at=BEGAN + 7.4, port_taken=False),
                Kill(worker=A, incarnation=3, pid=13, at=BEGAN + 8.1, port_taken=False),
            ),
            requests=(*run.requests, request(9.5, A, 4)),
            listed=(Listed(url=URL_A, worker=A, incarnation=4, answers=(A, 4)), run.listed[1]),
        )
    )
    assert broken(report) == {}
    assert [kill.was_registered for kill in report.kills] == [True, True, False]
    assert report.kills[2].deregistered is None
    assert report.kills[2].same_url is None


def test_failed_requests_are_counted_by_reason_and_break_nothing() -> None:
    failures = tuple(
        Request(sent=BEGAN + at, done=BEGAN + at + 0.1, failure=why) for at, why in ((3, "x"), (3.1, "y"), (3.2, "y"))
    )
    report = judge(run_of(good_log(), requests=(*run_of(good_log()).requests, *failures)))
    assert broken(report) == {}
    assert (report.requests.failed, report.requests.failures) == (3, {"y": 2, "x": 1})


def test_the_restart_of_the_router_has_its_times() -> None:
    restart = RouterRestart(at=BEGAN + 1.5, answered=BEGAN + 4)
    [told] = judge(run_of(good_log(), restarts=(restart,))).restarts
    assert (told.at, told.answered, told.served) == pytest.approx((1.5, 2.5, 0.55))


# ---------------------------------------------------------------- who served


def test_a_request_served_by_a_life_that_the_log_knew_was_over_breaks_i2() -> None:
    log = good_log()
    report = judge(run_of(log, requests=(*run_of(log).requests, request(5.021))))
    assert report.requests.wrong == 1
    assert "this life was over" in only(report, "no request was served by a wrong or dead incarnation")


def test_a_request_served_by_a_superseded_life_breaks_i2() -> None:
    log = good_log()
    report = judge(run_of(log, requests=(*run_of(log).requests, request(7))))
    assert report.requests.wrong == report.requests.unregistered == 1
    assert set(broken(report)) == {
        "no request was served by a wrong or dead incarnation",
        "no request was served by a life after it was deregistered",
    }


def test_a_request_that_was_sent_before_the_log_knew_is_not_wrong() -> None:
    log = good_log()
    report = judge(run_of(log, requests=(*run_of(log).requests, request(5.01, took=2.0))))
    assert broken(report) == {}


def test_a_request_served_by_nobody_that_the_log_knows_breaks_i2_and_i8() -> None:
    log = good_log()
    report = judge(run_of(log, requests=(*run_of(log).requests, request(3, A, 99))))
    assert set(broken(report)) == {
        "no request was served by a wrong or dead incarnation",
        "every life that was met is in the log, and is one process",
    }


def test_a_new_life_that_serves_before_it_is_registered_is_counted_and_breaks_nothing() -> None:
    log = good_log()
    report = judge(run_of(log, requests=(*run_of(log).requests, request(6.45, A, 2))))
    assert broken(report) == {}
    assert (report.requests.early, report.requests.wrong) == (1, 0)


def test_a_life_that_is_two_processes_breaks_the_run() -> None:
    log = good_log()
    other = msgspec.structs.replace(request(3), pid=99)
    report = judge(run_of(log, requests=(*run_of(log).requests, other)))
    line = only(report, "every life that was met is in the log, and is one process")
    assert line == f"{A} 1 is several processes: 11, 99"


# ---------------------------------------------------------------- the end


def test_a_listed_stranger_breaks_i1() -> None:
    listed = run_of(good_log()).listed
    report = judge(run_of(good_log(), listed=(*listed, Listed(url="http://127.0.0.1:9999"))))
    assert "nobody's in the roster" in only(report, "registrations match the roster at the end")


def test_a_missing_registration_breaks_i1() -> None:
    report = judge(run_of(good_log(), listed=run_of(good_log()).listed[:1]))
    assert only(report, "registrations match the roster at the end") == f"{B} 1 is wanted, and is not listed"


def test_a_stale_registration_breaks_i1() -> None:
    listed = run_of(good_log()).listed
    stale = Listed(url="http://127.0.0.1:7000", worker=A, incarnation=1)
    report = judge(run_of(good_log(), listed=(*listed, stale)))
    assert "the roster wants 2" in only(report, "registrations match the roster at the end")


def test_an_entry_where_somebody_else_answers_breaks_i1() -> None:
    first, second = run_of(good_log()).listed
    wrong = msgspec.structs.replace(first, answers=(B, 1))
    report = judge(run_of(good_log(), listed=(wrong, second)))
    assert f"{B} 1 answers there" in only(report, "registrations match the roster at the end")


def test_a_worker_that_never_came_back_breaks_i1() -> None:
    log = Log()
    log.messages = good_log().messages[:-4]
    run = run_of(log, listed=run_of(log).listed[1:], requests=run_of(log).requests[:2])
    assert set(broken(judge(run))) == {
        "registrations match the roster at the end",
        "every kill was followed to the end",
    }


def test_a_kill_that_could_not_be_made_breaks_the_run() -> None:
    assert "1 of 2 kills" in only(judge(run_of(good_log(), kills_wanted=2)), "every kill was followed to the end")


def test_a_kill_that_the_log_never_knew_breaks_the_run() -> None:
    run = run_of(good_log())
    more = Kill(worker=B, incarnation=1, pid=11, at=BEGAN + 6, port_taken=False)
    report = judge(run_of(good_log(), kills_wanted=2, kills=(*run.kills, more)))
    assert len(broken(report)["every kill was followed to the end"]) == 3


# ---------------------------------------------------------------- the log


def test_registering_a_dead_life_breaks_i2() -> None:
    log = good_log()
    log.down(8.0, A, 2)
    log.register(8.1, A, 2, URL_A)
    found = broken(judge(run_of(log)))
    assert "was registered, although serving: down" in found["no dead or superseded life was registered"][0]


def test_an_intent_that_lost_the_race_and_was_not_carried_out_breaks_nothing() -> None:
    log = good_log()
    log.down(8.0, A, 2)
    about = {"proxy": PROXY, "worker": A, "incarnation": 2, "url": URL_A}
    intent = log.add(8.1, Registering(**about))
    log.add(8.1, RegistrationFailed(**about, cause=intent, action="register", reason="not called: down"))
    log.deregister(8.2, A, 2, URL_A)
    log.up(9.0, A, 3)
    log.register(9.1, A, 3, URL_A)
    run = run_of(log)
    listed = (Listed(url=URL_A, worker=A, incarnation=3, answers=(A, 3)), run.listed[1])
    assert broken(judge(run_of(log, listed=listed))) == {}


def test_deregistering_a_serving_life_breaks_i3() -> None:
    log = good_log()
    log.deregister(8.0, B, 1, URL_B)
    log.register(8.1, B, 1, URL_B)
    assert f"{B} 1 was deregistered" in only(judge(run_of(log)), "no serving life was deregistered")


def test_i3_what_becomes_of_a_url_much_later_excuses_nothing() -> None:
    """B is taken out and put back where it was; long after that it dies, and its port falls to A."""
    log = good_log()
    log.deregister(8.0, B, 1, URL_B)
    log.register(8.1, B, 1, URL_B)
    log.down(8.2, B, 1)
    log.deregister(8.21, B, 1, URL_B)
    log.down(8.3, A, 2)
    log.deregister(8.31, A, 2, URL_A)
    log.up(8.4, A, 3)
    log.register(8.5, A, 3, URL_B)
    log.up(8.6, B, 2)
    log.register(8.7, B, 2, URL_A)
    listed = (
        Listed(url=URL_B, worker=A, incarnation=3, answers=(A, 3)),
        Listed(url=URL_A, worker=B, incarnation=2, answers=(B, 2)),
    )
    report = judge(run_of(log, listed=listed))
    assert f"{B} 1 was deregistered" in only(report, "no serving life was deregistered")


def test_deregistering_a_life_whose_url_is_another_workers_now_breaks_nothing() -> None:
    log = good_log()
    log.down(8.0, A, 2)
    log.deregister(8.01, A, 2, URL_A)
    log.up(8.1, A, 3)
    log.deregister(8.2, B, 1, URL_B)
    log.register(8.3, A, 3, URL_B)
    log.down(8.4, B, 1)
    log.up(8.5, B, 2)
    log.register(8.6, B, 2, URL_A)
    listed = (
        Listed(url=URL_B, worker=A, incarnation=3, answers=(A, 3)),
        Listed(url=URL_A, worker=B, incarnation=2, answers=(B, 2)),
    )
    assert broken(judge(run_of(log, listed=listed))) == {}


def test_an_outcome_without_intent_breaks_i5() -> None:
    log = good_log()
    log.add(8.0, Registered(proxy=PROXY, worker=B, incarnation=1, url=URL_B, cause=2))
    line = only(judge(run_of(log)), "every admin call has its intent and its outcome in the log")
    assert f"Registered of {B} 1 has no intent" in line


def test_an_intent_without_outcome_breaks_i5() -> None:
    log = good_log()
    log.add(8.0, Registering(proxy=PROXY, worker=B, incarnation=1, url=URL_B))
    line = only(judge(run_of(log)), "every admin call has its intent and its outcome in the log")
    assert f"Registering of {B} 1 has no outcome" in line


def test_a_lost_fact_breaks_the_replay() -> None:
    log = good_log()
    doctored = (*log.messages[:3], *log.messages[4:])
    found = broken(judge(run_of(log, log=doctored)))
    assert "expected sequence 4 and was handed 5" in found["replay of the log gives the live state"][0]


def test_a_lost_end_breaks_the_replay() -> None:
    log = good_log()
    found = broken(judge(run_of(log, log=tuple(log.messages[:-1]))))
    assert "the log ends at" in found["replay of the log gives the live state"][0]


def test_another_state_breaks_the_replay() -> None:
    line = only(judge(run_of(good_log(), live_digest="0" * 64)), "replay of the log gives the live state")
    assert "000000000000 in the controller" in line


def test_the_replay_is_compared_where_the_controller_was() -> None:
    log = good_log()
    sequence, digest = len(log.messages), log.digest()
    log.add(9.0, WorkerStarted(worker=B, incarnation=1, seen=4))
    assert broken(judge(run_of(log, live_sequence=sequence, live_digest=digest))) == {}


def test_garbage_in_the_log_breaks_i9() -> None:
    log = good_log()
    garbage = Stored(len(log.messages) + 1, f"rollbook.{FLEET}.worker.{A}", b"\xff", BEGAN + 9)
    log.messages.append(garbage)
    assert "not_json" in only(judge(run_of(log)), "every message in the log is a fact")


def test_many_problems_are_counted() -> None:
    log = good_log()
    requests = tuple(request(5.1 + index / 100) for index in range(20))
    report = judge(run_of(log, requests=(*run_of(log).requests, *requests)))
    assert report.requests.wrong == 20
    lines = broken(report)["no request was served by a wrong or dead incarnation"]
    assert lines[5:] == ("and 15 more",)


# ---------------------------------------------------------------- chaos

ALONE = "an entry that Rollbook did not make was left alone"
WRITER = "one controller at a time wrote to the router's subject"
BACK = "every part that was hurt did its work again"


def storm(log: Log, /, **changed) -> Run:
    """A run in which the demo had put an entry of its own into the router."""
    foreign = Foreign(url=FOREIGN, listed=True, served=4)
    return run_of(log, **{"foreign": foreign, **changed})


def reported() -> Log:
    log = good_log()
    log.add(8.0, DriftFound(proxy=PROXY, foreign=(FOREIGN,)))
    return log


def test_a_good_storm_passes_with_what_its_faults_cost() -> None:
    log = reported()
    paused = Disturbance(what="nats paused", whom="nats", at=BEGAN + 6.0, until=BEGAN + 7.5)
    fall = Fall(program="monitor", at=BEGAN + 6.2, code=1, said="no NATS")
    failed = Request(sent=BEGAN + 6.8, done=BEGAN + 6.9, failure="x")
    requests = (*run_of(log).requests, failed)
    report = judge(storm(log, disturbances=(paused,), faults_wanted=1, falls=(fall,), requests=requests))
    assert broken(report) == {}
    [told] = report.disturbances
    assert (told.at, told.back, told.served, told.fact) == pytest.approx((6.0, 1.5, 1.05, 0.5))
    assert told.failed == 1
    assert [(one.program, one.code) for one in report.falls] == [("monitor", 1)]
    assert [check.guards for check in report.checks][-3:] == ["I7", "I11", "I1"]


def test_a_deposed_controller_that_writes_breaks_i7() -> None:
    log = good_log()
    log.lead(7.5, OTHER, 2)
    about = {"proxy": PROXY, "worker": B, "incarnation": 1, "url": URL_B}
    log.add(7.6, Registered(**about, cause=log.add(7.6, Registering(**about), by=OTHER)), by=LEADER)
    line = only(judge(run_of(log)), WRITER)
    assert line.endswith(f"Registered by {LEADER}, and {OTHER} leads")


def test_an_epoch_that_comes_twice_breaks_i7() -> None:
    log = good_log()
    log.lead(7.5, OTHER, 1)
    assert only(judge(run_of(log)), WRITER).endswith(f"LeadershipTaken by {OTHER} of epoch 1, after 1")


def test_an_intent_that_died_with_its_leader_breaks_nothing_once_its_successor_has_spoken() -> None:
    log = good_log()
    about = {"proxy": PROXY, "worker": B, "incarnation": 1, "url": URL_B}
    log.add(7.0, Registering(**about))
    name = "every admin call has its intent and its outcome in the log"
    assert "Registering of rollout-1-0 1 has no outcome" in only(judge(run_of(log)), name)
    log.lead(7.5, OTHER, 2)
    assert "Registering of rollout-1-0 1 has no outcome" in only(judge(run_of(log)), name)
    log.add(7.6, Registered(**about, cause=log.add(7.6, Registering(**about), by=OTHER)), by=OTHER)
    assert broken(judge(run_of(log))) == {}


def test_what_the_foreign_entry_served_was_sent_too() -> None:
    run = storm(reported())
    requests = judge(run).requests
    assert (requests.sent, requests.foreign) == (len(run.requests) + 4, 4)
    assert "4 served by the stranger's entry" in str(render(judge(run)))


def test_a_foreign_entry_that_is_gone_breaks_i11() -> None:
    foreign = Foreign(url=FOREIGN, listed=False, served=4)
    assert only(judge(storm(reported(), foreign=foreign)), ALONE) == f"{FOREIGN} is not listed at the end"


def test_a_foreign_entry_that_was_touched_breaks_i11() -> None:
    log = reported()
    log.deregister(8.5, A, 1, FOREIGN)
    found = broken(judge(storm(log)))
    assert any(line.endswith("Deregistering") for line in found[ALONE])


def test_a_foreign_entry_that_nobody_reported_breaks_i11() -> None:
    assert "never reported" in only(judge(storm(good_log())), ALONE)


def test_a_part_that_did_not_come_back_or_was_not_hurt_breaks_the_run() -> None:
    away = Disturbance(what="node killed", whom="second Ray node", at=BEGAN + 6.0, until=None)
    found = broken(judge(storm(reported(), disturbances=(away,), faults_wanted=2)))
    assert found == {
        BACK: ("node killed at 6.0 s: second Ray node did not come back", "1 of 2 faults were carried out")
    }


def test_i2_a_life_that_was_given_up_and_then_seen_to_be_over_is_wrong_from_then_on() -> None:
    log = good_log()
    log.down(8.0, B, 1, "timeout")
    log.down(8.1, B, 1, "exited")
    log.deregister(8.5, B, 1, URL_B)
    log.up(9.0, B, 2)
    log.register(9.1, B, 2, URL_B)
    listed = (run_of(log).listed[0], Listed(url=URL_B, worker=B, incarnation=2, answers=(B, 2)))
    before, after = request(8.05, B), request(8.2, B)
    report = judge(run_of(log, listed=listed, requests=(*run_of(log).requests, before, after)))
    assert "8.200 s" in only(report, "no request was served by a wrong or dead incarnation")
    assert (report.requests.late, report.requests.wrong) == (1, 1)


def test_a_life_that_stood_still_and_was_still_listed_is_late_and_breaks_nothing() -> None:
    """It was concluded, and not seen, that it is over [I2]: it is wrong only once it was deregistered."""
    log = good_log()
    log.down(8.0, B, 1, "timeout")
    log.deregister(8.5, B, 1, URL_B)
    log.up(9.0, B, 2)
    log.register(9.1, B, 2, URL_B)
    listed = (run_of(log).listed[0], Listed(url=URL_B, worker=B, incarnation=2, answers=(B, 2)))
    late = request(8.2, B)
    report = judge(run_of(log, listed=listed, requests=(*run_of(log).requests, late)))
    assert broken(report) == {}
    assert report.requests.late == 1
    report = judge(run_of(log, listed=listed, requests=(*run_of(log).requests, request(8.7, B))))
    assert set(broken(report)) == {"no request was served by a life after it was deregistered"}
