"""64 workers behind a real sglang-router, 5 of which it cannot add: `rollbook up` and `rollbook status` as they run."""

import json
import re
import subprocess
from contextlib import AsyncExitStack

import pytest
from support.programs import PATIENCE, ROLLBOOK, demo_workers, environment, wait_until
from support.routers import running_router
from support.stream import FleetStream
from support.workers import nobody_listens

from rollbook.adapters.cli.exits import Exit
from rollbook.adapters.publisher import Publisher
from rollbook.events import Registered, RegistrationFailed

pytestmark = [pytest.mark.e2e, pytest.mark.router]

NAMES = [f"rollout-{number}-0" for number in range(64)]
BAD = [NAMES[number] for number in (17, 31, 45, 50, 60)]
IMPATIENT = ("--worker-startup-timeout-secs=1", "--worker-startup-check-interval=1", "--health-check-interval-secs=1")


@pytest.fixture
async def addresses():
    """The `host:port` of each worker; at those of the bad ones nobody answers."""
    async with AsyncExitStack() as stack:
        dead = {name: await stack.enter_async_context(nobody_listens()) for name in BAD}
        living = stack.enter_context(demo_workers([name for name in NAMES if name not in BAD]))
        yield living | {name: url.removeprefix("http://") for name, url in dead.items()}


def rollbook(folder, *arguments):
    return subprocess.run(
        [*ROLLBOOK, *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


@pytest.mark.timeout(300)
def test_59_of_64_are_in_and_status_says_so_in_one_line(tmp_path, nats_server, fleet, addresses):
    stream = FleetStream(nats_server.url, fleet).make()
    tables = "".join(f'[provider.workers.{name}]\nprimary = "{at}"\n' for name, at in addresses.items())
    (tmp_path / "router").mkdir()
    with running_router(tmp_path / "router", flags=IMPATIENT) as router:
        # Nobody is asked whether it is ready: what cannot be added is found out at the router.
        (tmp_path / "rollbook.toml").write_text(
            f'fleet = "{fleet}"\n[nats]\nurl = "{nats_server.url}"\n[provider]\nkind = "static"\n{tables}'
            '[pools.rollout]\nready_path = ""\n'
            f'[[proxies]]\nname = "router-a"\nkind = "sglang"\nadmin_url = "{router.url}"\npools = ["rollout"]\n'
        )
        log = tmp_path / "up.log"
        with (
            log.open("w") as told,
            subprocess.Popen([*ROLLBOOK, "up"], cwd=tmp_path, env=environment(), stdout=told, stderr=told) as process,
        ):
            try:
                wait_until(lambda: "controller.started" in log.read_text() or process.poll() is not None)
                assert process.poll() is None, log.read_text()
                with Publisher(fleet, nats_server.url) as publisher:
                    for name in NAMES:
                        publisher.worker_up(name, incarnation=1)
                    assert publisher.flush(PATIENCE).unsent == ()

                def outcomes(kind):
                    return [line.fact for line in stream.lines() if isinstance(line.fact, kind)]

                def failures():
                    """How often each was tried in vain, once each was tried three times."""
                    facts = outcomes(RegistrationFailed)
                    tries = {name: [fact for fact in facts if fact.worker == name] for name in BAD}
                    return tries if min(map(len, tries.values())) >= 3 else None

                wait_until(lambda: {fact.worker for fact in outcomes(Registered)} == set(NAMES) - set(BAD))
                tries = wait_until(failures)
                assert {fact.worker for fact in outcomes(RegistrationFailed)} == set(BAD)
                assert all(fact.action == "register" and fact.retryable for facts in tries.values() for fact in facts)
                waits = [tuple(fact.retry_seconds for fact in facts[:3]) for facts in tries.values()]
                for number in range(3):
                    assert all(0 <= wait[number] <= 0.2 * 2**number for wait in waits), (
                        "at most so long, and ever longer"
                    )
                assert len(set(waits)) == len(BAD), "each on a schedule of its own"

                ended = rollbook(tmp_path, "status")
                assert ended.returncode == Exit.DIFFERENCES, ended.stderr
                [line] = [line for line in ended.stdout.splitlines() if "of 64 registered" in line]
                assert line.strip().startswith("router-a: 59 of 64 registered; 5 failed: ")
                for name in BAD:
                    assert re.search(rf"{name} \((register|registering): ", line)  # the latter while it is tried again
                assert line.count("; attempt ") == len(BAD)
                [proxy] = json.loads(rollbook(tmp_path, "status", "--json").stdout)["proxies"]
                assert (proxy["registered"], proxy["wanted"]) == (59, 64)
                assert {one["worker"] for one in proxy["failing"]} == set(BAD)
                assert all(one["attempts"] >= 3 for one in proxy["failing"])
            finally:
                process.kill()
