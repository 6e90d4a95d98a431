"""`rollbook check` and `rollbook init`: a configuration is judged, and one is written that passes."""

import json
from pathlib import Path

import pytest
from support.commands import GOOD, call

from rollbook.adapters.cli.exits import Exit
from rollbook.adapters.settings import RayActorsProvider, RayProvider, StaticProvider, load

pytestmark = pytest.mark.usefixtures("in_an_empty_folder")

# ---------------------------------------------------------------- check


def test_check_says_what_it_found(capsys, tmp_path):
    (tmp_path / "rollbook.toml").write_text(GOOD)
    code, out, err = call(capsys, "check")
    assert code == Exit.DONE
    assert out.endswith(
        "rollbook.toml: good. fleet math-rl, log in an embedded NATS, provider ray, "
        "proxies: router-a (sglang: rollout)\n"
    )
    assert err == ""


def test_check_prints_every_problem(capsys, tmp_path):
    (tmp_path / "rollbook.toml").write_text(GOOD.replace("fleet", "flet").replace("sglang", "nginx"))
    code, out, err = call(capsys, "check")
    assert (code, out) == (Exit.USAGE, "")
    assert [line.split(": ")[:3] for line in err.splitlines()] == [
        ["rollbook", "rollbook.toml", "flet"],
        ["rollbook", "rollbook.toml", "fleet"],
        ["rollbook", "rollbook.toml", "proxies[0].kind"],
    ]


def test_check_warns_of_what_is_not_here_and_may_be_elsewhere(capsys, tmp_path):
    (tmp_path / "rollbook.toml").write_text(
        GOOD.replace("sglang", "routed-api").replace("http://", "https://")
        + 'ca = "none.pem"\n[proxies.options]\nmodel_name = "m"\nworker_key = { file = "nowhere" }'
    )
    code, _, err = call(capsys, "check")
    assert code == Exit.DONE
    secret, certificate = err.splitlines()
    assert secret.startswith("rollbook: warning: proxies[0].options.worker_key: ")
    assert "nowhere: cannot be read (No such file or directory)" in secret
    assert certificate.startswith("rollbook: warning: proxy 'router-a': ca: ")
    assert "none.pem: it cannot be read (No such file or directory)" in certificate


def test_check_warns_of_a_configuration_that_can_find_nobody(capsys, tmp_path):
    (tmp_path / "rollbook.toml").write_text('fleet = "f"\n[provider]\nkind = "static"\n')
    code, _, err = call(capsys, "check", "-c", str(tmp_path / "rollbook.toml"))
    assert code == Exit.DONE
    assert err.startswith("rollbook: warning: provider: names no workers and no file, so nobody will be found")


@pytest.mark.parametrize(
    ("kind", "told"),
    [("sglang", True), ("routed-api", True), ("vllm", False), ("miles", False), ("lmdeploy", False)],
)
def test_check_warns_of_a_model_that_a_proxy_is_not_told(capsys, tmp_path, kind, told):
    options = '[proxies.options]\nmodel_name = "m"\n' if kind == "routed-api" else ""
    text = GOOD.replace("sglang", kind).replace("[pools.rollout]", '[pools.rollout]\nmodel = "m"')
    (tmp_path / "rollbook.toml").write_text(text + options)
    code, _, err = call(capsys, "check")
    assert code == Exit.DONE
    assert ("pools.rollout.model: 'm' is not told to router-a" in err) is not told


def test_check_as_json(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("ROLLBOOK_FLET", "x")
    file = tmp_path / "rollbook.toml"
    file.write_text(GOOD + 'api_key = { env = "NOT_HERE" }')
    code, out, err = call(capsys, "check", "--json")
    assert (code, err) == (Exit.DONE, "")
    assert json.loads(out) == {
        "ok": True,
        "problems": [],
        "warnings": [
            "ROLLBOOK_FLET is set and overrides nothing; did you mean ROLLBOOK_FLEET?",
            "proxies[0].api_key: the environment variable NOT_HERE is not set or empty; a secret is said to be in it",
        ],
    }
    file.write_text("fleet = 1")
    code, out, err = call(capsys, "check", "--json")
    assert (code, err) == (Exit.USAGE, "")
    assert json.loads(out)["problems"][0] == "rollbook.toml: fleet: the number 1 where a string is needed"


# ---------------------------------------------------------------- init


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--fleet", "math-rl", "--proxy", "router-a=sglang@http://127.0.0.1:30000"],
        ["--proxy", "a=sglang@http://h:1", "--proxy", "b=sglang@http://h:2", "--pool", "prefill", "--pool", "decode"],
        ["--provider", "static"],
        ["--workers-file", "workers.toml"],
        ["--actor", "engine-{worker}"],
        ["--provider", "ray-actors", "--actor", "engine/{worker}"],
        ["--worker", "rollout-0-0=h:80", "--worker", "rollout-1-0=[::1]:81", "--nats-url", "nats://h:4222"],
        ["--pool", "rollout", "--pool", "rollout"],
        ["--proxy", "a=vllm@http://h:1", "--proxy", "b=haproxy@unix:///run/haproxy/admin.sock,backend=workers"],
        ["--proxy", "b=haproxy@tcp://h:1,backend=workers,server=check inter 1s"],
        ["--proxy", "a=miles@http://h:1", "--proxy", "b=lmdeploy@https://h/admin"],
        ["--proxy", "a=routed-api@http://h:1,model_name=qwen3-8b", "--proxy", "b=routed-api@http://h:1,model_name=7"],
    ],
)
def test_what_init_writes_passes_check(capsys, arguments):
    code, out, _ = call(capsys, "init", *arguments)
    assert (code, out) == (Exit.DONE, "rollbook.toml\n")
    assert call(capsys, "check")[0] == Exit.DONE


def test_init_writes_what_it_was_told(capsys, tmp_path):
    code, _, err = call(
        capsys, "init", "--fleet", "f", "--proxy", "a=sglang@http://h:1", "--worker", "rollout-0-0=h:80"
    )
    assert code == Exit.DONE
    assert "fleet f; routers: a at http://h:1" in err
    settings = load(None, environ={}, cwd=tmp_path).settings
    assert settings.fleet == "f"
    assert settings.proxies[0].pools == ("rollout",)
    assert settings.provider.workers == {"rollout-0-0": {"primary": "h:80"}}
    assert settings.nats.url is None


def test_init_writes_where_addresses_come_from(capsys, tmp_path):
    def provider(*arguments):
        assert call(capsys, "init", "--force", *arguments)[0] == Exit.DONE
        return load(None, environ={}, cwd=tmp_path).settings.provider

    assert provider("--workers-file", "w.toml") == StaticProvider(file="w.toml")
    assert provider("--actor", 'it\'s "{worker}"') == RayActorsProvider(actor='it\'s "{worker}"')
    assert provider() == RayProvider()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--worker", "w=h:1", "--workers-file", "f"],
            "--worker and --workers-file each say where addresses come from",
        ),
        (["--worker", "w=h:1", "--provider", "ray"], "--worker is for --provider static, and --provider ray is given"),
        (["--actor", "a-{worker}", "--provider", "static"], "--actor is for --provider ray-actors"),
        (
            ["--provider", "ray-actors"],
            "--provider ray-actors needs the actors' names: write --actor 'engine-{worker}'",
        ),
        (["--actor", "engine"], "'engine' is no name of each worker's actor"),
    ],
)
def test_init_is_told_one_place_for_addresses(capsys, tmp_path, arguments, told):
    code, _, err = call(capsys, "init", *arguments)
    assert code == Exit.USAGE
    assert told in err
    assert not (tmp_path / "rollbook.toml").exists()


def test_check_tells_what_is_wrong_with_the_file_of_workers(capsys, tmp_path):
    assert call(capsys, "init", "--workers-file", "workers.toml")[0] == Exit.DONE
    code, _, err = call(capsys, "check")
    assert code == Exit.DONE
    assert f"warning: {tmp_path / 'workers.toml'}: cannot be read (No such file or directory)" in err
    (tmp_path / "workers.toml").write_text('[workers.rollout-0-0]\nprimary = "10.0.0.5"\nincarnation = 0\n')
    _, _, err = call(capsys, "check")
    assert "workers.toml: workers.rollout-0-0.incarnation: the number 0 where a whole number above 0 is needed" in err
    assert "workers.toml: workers.rollout-0-0.primary: it has no port; write host:port" in err
    (tmp_path / "workers.toml").write_text('[workers.rollout-0-0]\nprimary = "10.0.0.5:8000"\nincarnation = 2\n')
    assert "warning" not in call(capsys, "check")[2]
    with (tmp_path / "rollbook.toml").open("a") as file:
        file.write('[pools.rollout.health]\nurl = "http://{admin}"\n')
    told = "pools.rollout.health.url: names 'admin', an address that no worker of this pool has; they have: primary"
    assert f"warning: {told}, says {tmp_path / 'workers.toml'}" in call(capsys, "check")[2]


def test_init_writes_what_a_kind_asks_for_and_asks_for_what_it_was_not_told(capsys, tmp_path):
    code, _, err = call(capsys, "init", "--proxy", "edge=haproxy@tcp://h:1,server=check")
    assert code == Exit.USAGE
    assert "kind haproxy needs its backend: write edge=haproxy@tcp://h:1,backend=..." in err
    assert call(capsys, "init", "--proxy", "edge=haproxy@tcp://h:1,server=check,backend=workers")[0] == Exit.DONE
    (proxy,) = load(None, environ={}, cwd=tmp_path).settings.proxies
    assert (proxy.admin_url, proxy.options) == ("tcp://h:1", {"server": "check", "backend": "workers"})
    assert "api_key" not in (tmp_path / "rollbook.toml").read_text()


def test_init_writes_no_secret(capsys, tmp_path):
    code, _, err = call(capsys, "init", "--proxy", "a=routed-api@http://h:1,model_name=m,worker_key=hunter2")
    assert code == Exit.USAGE
    assert "proxies[0].options.worker_key: a secret in clear" in err
    assert "hunter2" not in err
    assert not (tmp_path / "rollbook.toml").exists()


def test_init_names_the_fleet_after_the_folder(capsys, tmp_path, monkeypatch):
    folder = tmp_path / "my run (2)"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert call(capsys, "init")[0] == Exit.DONE
    assert load(None, environ={}, cwd=folder).settings.fleet == "my-run-2"


def test_init_overwrites_only_when_told(capsys, tmp_path):
    file = tmp_path / "rollbook.toml"
    file.write_text("mine")
    code, _, err = call(capsys, "init")
    assert code == Exit.USAGE
    assert "exists already; edit it, choose another with -c, or overwrite it with --force" in err
    assert file.read_text() == "mine"
    assert call(capsys, "init", "--force")[0] == Exit.DONE
    assert file.read_text() != "mine"


def test_init_writes_nothing_that_would_not_pass_check(capsys, tmp_path):
    code, _, err = call(capsys, "init", "--proxy", "a=nginx@h:1", "--proxy", "b=sglang@h:1")
    assert code == Exit.USAGE
    assert len(err.splitlines()) == 2
    assert not (tmp_path / "rollbook.toml").exists()


def test_init_without_a_router_on_the_ports_finds_none(capsys, tmp_path):
    import socket

    with socket.socket() as nobody:  # bound and not listening: connections are refused
        nobody.bind(("127.0.0.1", 0))
        port = str(nobody.getsockname()[1])
        code, _, err = call(capsys, "init", "--find", "--port", port)
    assert code == Exit.DONE
    assert "routers: none yet" in err
    assert load(None, environ={}, cwd=Path()).settings.proxies == ()
