"""The reconciliation commands as an operator runs them: real processes, a real router, workers that answer HTTP."""

import json
import subprocess
import urllib.request

import pytest
from support.programs import PATIENCE, ROLLBOOK, demo_workers, environment, wait_until
from support.routers import running_router

pytestmark = [pytest.mark.e2e, pytest.mark.router]

A, B, C = NAMES = ("rollout-0-0", "rollout-1-0", "rollout-2-0")
WHY = ("--reason", "test")


class Folder:
    """A folder with a configuration, the commands run in it, and the controllers that it started."""

    def __init__(self, path, router, workers, nats, fleet):
        self.path, self.router, self.workers, self.nats, self.fleet = path, router, workers, nats, fleet
        self.controllers = []
        path.mkdir()
        (path / "elsewhere").mkdir()
        tables = "".join(f'[provider.workers.{name}]\nprimary = "{at}"\n' for name, at in workers.items())
        (path / "rollbook.toml").write_text(
            f'fleet = "{fleet}"\n[nats]\nurl = "{nats}"\n[provider]\nkind = "static"\n{tables}[pools.rollout]\n'
            f'[[proxies]]\nname = "router-a"\nkind = "sglang"\nadmin_url = "{router}"\npools = ["rollout"]\n'
            "[reconcile]\nresync = 1.0\n"
        )

    def run(self, *arguments, laptop=False):
        """Run a command here; `laptop` knows nothing but fleet and server."""
        known = {"ROLLBOOK_FLEET": self.fleet, "ROLLBOOK_NATS_URL": self.nats} if laptop else {}
        return subprocess.run(
            [*ROLLBOOK, *arguments],
            cwd=self.path / "elsewhere" if laptop else self.path,
            env=environment(**known),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )

    def json(self, *arguments, code=0, **options):
        ended = self.run(*arguments, "--json", **options)
        assert ended.returncode == code, (ended.returncode, ended.stdout, ended.stderr)
        return json.loads(ended.stdout)

    def did(self, *arguments, code=0, **options):
        """The output of a command that must end so."""
        ended = self.run(*arguments, **options)
        assert ended.returncode == code, (ended.returncode, ended.stdout, ended.stderr)
        assert "Traceback" not in ended.stderr
        return ended.stdout

    def up(self):
        name = self.path / f"up-{len(self.controllers)}.log"
        with name.open("w") as log:
            command = [*ROLLBOOK, "up"]
            process = subprocess.Popen(command, cwd=self.path, env=environment(), stdout=log, stderr=log)
        self.controllers.append(process)
        wait_until(lambda: "controller.started" in name.read_text() or process.poll() is not None)
        assert process.poll() is None, name.read_text()
        return process

    def down(self):
        for process in self.controllers:
            process.kill()
            process.wait()

    def url(self, name):
        return f"http://{self.workers[name]}"

    def listed(self):
        with urllib.request.urlopen(f"{self.router}/workers", timeout=10) as answer:
            urls = {worker["url"] for worker in json.load(answer)["workers"]}
        return {name for name in self.workers if self.url(name) in urls}

    def lines(self, **options):
        """(change, worker, what it would be) of the plan."""
        ended = self.run("plan", "--json", **options)
        return [(line["change"], line["worker"], line["would"]) for line in json.loads(ended.stdout)["lines"]]


def empty(router):
    with urllib.request.urlopen(f"{router}/workers", timeout=10) as answer:
        ids = [worker["id"] for worker in json.load(answer)["workers"]]
    for worker_id in ids:
        request = urllib.request.Request(f"{router}/workers/{worker_id}", method="DELETE")
        urllib.request.urlopen(request, timeout=10).close()


@pytest.fixture(scope="module")
def router(tmp_path_factory):
    with running_router(tmp_path_factory.mktemp("router")) as router:
        yield router.url


@pytest.fixture(scope="module")
def workers():
    with demo_workers(NAMES) as workers:
        yield workers


@pytest.fixture
def folder(tmp_path, router, workers, nats_server, fleet):
    folder = Folder(tmp_path / "fleet", router, workers, nats_server.url, fleet)
    yield folder
    folder.down()
    empty(router)
    wait_until(lambda: not folder.listed())


def test_plan_and_reconcile_around_a_hold_with_a_plan_that_is_kept(folder):
    folder.up()
    folder.did("hold", *WHY)
    folder.did("publish", "up", A)
    folder.did("publish", "up", B)
    wait_until(lambda: folder.lines() == [("withheld", A, "register"), ("withheld", B, "register")])
    shown = folder.run("plan")
    assert shown.returncode == 2
    assert f"! withheld  router-a  {A} #1 {folder.url(A)}  register: held by" in shown.stdout
    assert shown.stdout.splitlines()[-1] == "Plan: 0 to register, 0 to replace, 0 to deregister, 2 withheld"
    assert folder.lines(laptop=True) == folder.lines()
    assert folder.run("plan", "--out", "kept.plan").returncode == 2
    assert "2 left" in folder.did("reconcile", code=2)
    assert folder.listed() == set()

    folder.did("publish", "down", B)
    wait_until(lambda: len(folder.lines()) == 1)
    refused = folder.run("reconcile", "--plan", "kept.plan")
    assert refused.returncode == 1
    assert f"no more: register {B} #1 {folder.url(B)} at router-a" in refused.stderr
    assert folder.run("plan", "--out", "kept.plan").returncode == 2
    (folder.path / "cut.plan").write_text((folder.path / "kept.plan").read_text().replace("#1", "#2")[:-20])
    assert folder.run("reconcile", "--plan", "cut.plan").returncode == 64

    folder.did("release", *WHY)
    wait_until(lambda: folder.listed() == {A})
    done = folder.json("reconcile")
    assert done["finished"]
    assert done["left"]["lines"] == []
    assert folder.did("plan") == "Plan: 0 to register, 0 to replace, 0 to deregister\n"


def test_what_an_operator_decides_is_done_and_shown(folder):
    folder.up()
    folder.did("publish", "up", A)
    folder.did("publish", "up", B)
    assert folder.did("wait", "--min", "2", "--timeout", str(PATIENCE)).startswith("2 routed")
    assert folder.listed() == {A, B}

    folder.did("cordon", A, *WHY, "--by", "ann")
    wait_until(lambda: folder.listed() == {B})
    assert "cordoned by ann: test" in folder.run("status").stdout
    late = folder.run("wait", "--worker", A, "--timeout", "2")
    assert late.returncode == 3
    assert f"{A}: cordoned by ann: test" in late.stderr
    assert "is not cordoned" in folder.run("uncordon", B, *WHY).stderr
    folder.did("uncordon", A, *WHY)
    folder.did("wait", "--worker", A, "--timeout", str(PATIENCE))
    assert folder.listed() == {A, B}

    folder.did("drain", B, *WHY, "--deadline", "1")
    folder.did("wait", "--worker", B, "--for", "gone", "--timeout", str(PATIENCE))
    assert folder.listed() == {A}

    folder.did("forget", A, *WHY, laptop=True)
    wait_until(lambda: folder.listed() == set())
    folder.did("publish", "up", A, "--incarnation", "1")
    assert folder.lines() == []
    folder.did("publish", "up", A)
    folder.did("wait", "--worker", A, "--incarnation", "2", "--timeout", str(PATIENCE), laptop=True)
    assert folder.listed() == {A}

    asked = folder.run("end")
    assert asked.returncode == 64
    assert "1 registration to be removed; say --yes" in asked.stderr
    folder.did("end", "--yes", "--by", "ann")
    wait_until(lambda: folder.listed() == set())
    assert "(ann)" in folder.run("status").stdout


def test_a_name_that_the_log_does_not_know_asks_for_yes(folder):
    folder.up()
    folder.did("publish", "up", A)
    for command in ("cordon", "drain", "forget"):
        asked = folder.run(command, "rollout-0-1", *WHY)
        assert asked.returncode == 64
        assert f"did you mean '{A}'?; say --yes to mean it" in asked.stderr
    assert "did you mean 'router-a'" in folder.run("hold", "--proxy", "router-b", *WHY).stderr
    folder.did("cordon", C, *WHY, "--yes")
    folder.did("publish", "up", C)
    folder.did("wait", "--worker", A, "--timeout", str(PATIENCE))
    assert folder.listed() == {A}


def test_one_pass_without_a_controller_and_not_with_one(folder):
    done = folder.json("reconcile", "--once")
    assert done["steps"] == []
    folder.did("publish", "up", A)
    assert folder.lines() == [("register", A, None)]
    assert folder.lines(laptop=True) == []
    alone = folder.run("reconcile")
    assert alone.returncode == 1
    assert "rollbook reconcile --once" in alone.stderr
    folder.run("plan", "--out", "kept.plan")
    shown = folder.did("reconcile", "--once", "--plan", "kept.plan")
    assert f"+ registered   router-a  {A} #1 {folder.url(A)}" in shown
    assert shown.splitlines()[-1] == "Reconciled: 1 registered, 0 deregistered, 0 failed; 0 left"
    assert folder.listed() == {A}
    assert folder.did("plan") == "Plan: 0 to register, 0 to replace, 0 to deregister\n"

    folder.did("publish", "down", A)
    assert folder.lines(laptop=True) == [("deregister", A, None)]
    folder.up()
    refused = folder.run("reconcile", "--once")
    assert refused.returncode == 1
    assert "let it make the pass, without --once" in refused.stderr
    wait_until(lambda: folder.listed() == set())
