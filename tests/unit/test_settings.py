"""Configurations as they are found, read and overridden by variables; and the page that lists every key."""

import re
import tomllib
from pathlib import Path

import msgspec
import pytest
from support.configured import GOOD, changed, problems, read

from rollbook.adapters.settings import (
    ConfigError,
    ProxySettings,
    RayProvider,
    SecretRef,
    Settings,
    StaticProvider,
    load,
    load_client,
    read_secret,
    refuse_unreachable_log,
)
from rollbook.adapters.settings.environment import variables
from rollbook.adapters.settings.reference import page
from rollbook.projections.policy import PoolPolicy, ProxyPolicy, ReconcilePolicy
from rollbook.projections.ports import HostAndPort

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"

# ---------------------------------------------------------------- what is read


def test_the_smallest_useful_file(tmp_path):
    config = read(tmp_path, GOOD)
    assert config.settings == Settings(
        fleet="math-rl",
        provider=RayProvider(),
        nats=msgspec.structs.replace(Settings(fleet="x", provider=RayProvider()).nats, url="nats://127.0.0.1:4222"),
        pools={"rollout": PoolPolicy()},
        proxies=(
            ProxySettings(name="router-a", kind="sglang", admin_url="http://127.0.0.1:30000", pools=("rollout",)),
        ),
    )
    assert config.directory == tmp_path / ".rollbook"
    assert config.warnings == ()


def test_policy_is_what_the_gates_and_the_plan_need(tmp_path):
    text = changed("[pools.rollout]", '[pools.rollout]\nready_path = ""\n[reconcile]\nresync = 2')
    policy = read(tmp_path, text).settings.policy()
    assert policy.fleet == "math-rl"
    assert policy.pool("rollout") == PoolPolicy(ready_path=None)
    assert policy.proxies["router-a"].pools == ("rollout",)
    assert policy.reconcile == ReconcilePolicy(resync=2.0)


def test_what_is_said_of_a_proxy_and_its_pools_reaches_the_plan(tmp_path):
    text = changed("[pools.rollout]", '[pools.rollout]\nrole = "prefill"\nbootstrap = "kv"\nmodel = "m"') + (
        "exclusive = true\nremoval_budget = 0\ndrain_deadline = 5\ncall_deadline = 2\n"
    )
    policy = read(tmp_path, text).settings.policy()
    assert policy.pool("rollout") == PoolPolicy(role="prefill", bootstrap="kv", model="m")
    assert policy.proxies["router-a"] == ProxyPolicy(
        name="router-a",
        pools=("rollout",),
        exclusive=True,
        removal_budget=0.0,
        drain_deadline=5.0,
        call_deadline=2.0,
    )
    plain = read(tmp_path, GOOD).settings.policy().proxies["router-a"]
    assert plain == ProxyPolicy(name="router-a", pools=("rollout",))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("pools =", 'data_url = "https://data"\npools =', "https://data"),
        ("pools =", "pools =", "http://127.0.0.1:30000"),
        ('kind = "sglang"', 'options = { model_name = "m" }\nkind = "routed-api"', None),
    ],
)
def test_where_clients_send_their_requests(tmp_path, old, new, expected):
    assert read(tmp_path, changed(old, new)).settings.proxies[0].requests_url == expected


def test_static_addresses(tmp_path):
    text = changed(
        'kind = "ray"', 'kind = "static"\n[provider.workers.rollout-0-0]\nprimary = "h:80"\nsession = "[::1]:81"'
    )
    provider = read(tmp_path, text).settings.provider
    assert isinstance(provider, StaticProvider)
    assert provider.addresses() == {"rollout-0-0": {"primary": HostAndPort("h", 80), "session": HostAndPort("::1", 81)}}


# ---------------------------------------------------------------- where the file is


def test_a_file_that_is_given_wins_over_the_variable_and_the_folder(tmp_path):
    for name in ("given", "named", "rollbook"):
        (tmp_path / f"{name}.toml").write_text(changed("math-rl", name))
    environ = {"ROLLBOOK_CONFIG": "named.toml"}
    given = tmp_path / "given.toml"
    assert load(given, environ=environ, cwd=tmp_path).settings.fleet == "given"
    assert load(None, environ=environ, cwd=tmp_path).settings.fleet == "named"
    assert load(None, environ={}, cwd=tmp_path).settings.fleet == "rollbook"


def test_no_file_says_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match=r"there is no rollbook.toml in .*: write one with `rollbook init`"):
        load(None, environ={}, cwd=tmp_path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"fleet = ", "broken.toml: is not TOML: Invalid value (at end of document)"),
        (b"\xff\xfe", "broken.toml: is not UTF-8 text, so it is no TOML file"),
        (
            b"n = " + b"9" * 5000,
            (
                "broken.toml: is not TOML: Exceeds the limit (4300 digits) for integer string conversion: value has "
                "5000 digits; use sys.set_int_max_str_digits() to increase the limit"
            ),
        ),
        (b"n = " + b"[" * 5000, "broken.toml: is nested too deep"),
        (None, "broken.toml: cannot be read (No such file or directory); name another file with -c FILE"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path, monkeypatch, content, expected):
    if content is not None:
        (tmp_path / "broken.toml").write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load(Path("broken.toml"), environ={}, cwd=tmp_path)
    assert caught.value.problems == (expected,)


# ---------------------------------------------------------------- the environment


def test_variables_override_the_file(tmp_path):
    environ = {
        "ROLLBOOK_FLEET": "other",
        "ROLLBOOK_NATS_URL": "tls://nats:4222",
        "ROLLBOOK_PROVIDER_NAMESPACE": "ns",
        "ROLLBOOK_POOLS_ROLLOUT_REQUIRES_PROXY": "false",
        "ROLLBOOK_PROXIES_ROUTER_A_ADMIN_URL": "http://elsewhere:1",
        "ROLLBOOK_RECONCILE_RESYNC": "0.5",
        "ROLLBOOK_LOGS_FORMAT": "json",
    }
    settings = read(tmp_path, GOOD, environ).settings
    assert (settings.fleet, settings.nats.url, settings.provider) == (
        "other",
        "tls://nats:4222",
        RayProvider(namespace="ns"),
    )
    assert settings.pools["rollout"].requires_proxy is False
    assert settings.proxies[0].admin_url == "http://elsewhere:1"
    assert (settings.reconcile.resync, settings.logs.format) == (0.5, "json")


def test_a_list_is_separated_by_commas(tmp_path):
    text = changed("[pools.rollout]", "[pools.rollout]\n[pools.decode]")
    settings = read(tmp_path, text, {"ROLLBOOK_PROXIES_ROUTER_A_POOLS": "rollout, decode"}).settings
    assert settings.proxies[0].pools == ("rollout", "decode")


def test_a_variable_can_choose_the_provider(tmp_path):
    environ = {"ROLLBOOK_PROVIDER_KIND": "ray", "ROLLBOOK_PROVIDER_MANAGER": "m"}
    settings = read(tmp_path, changed('[provider]\nkind = "ray"\n', ""), environ).settings
    assert settings.provider == RayProvider(manager="m")


def test_a_secret_in_a_variable_is_a_reference_to_it(tmp_path):
    environ = {"ROLLBOOK_NATS_TOKEN": "hunter2"}
    config = read(tmp_path, GOOD, environ)
    assert config.settings.nats.token == SecretRef(env="ROLLBOOK_NATS_TOKEN")
    assert "hunter2" not in repr(config)
    assert read_secret(config.settings.nats.token, environ=environ, base=tmp_path) == "hunter2"


def test_what_is_wrong_with_a_variable_names_the_variable(tmp_path):
    environ = {"ROLLBOOK_RECONCILE_RESYNC": "soon", "ROLLBOOK_LOGS_LEVEL": "loud", "ROLLBOOK_PROVIDER_KIND": "k8s"}
    assert problems(tmp_path, GOOD, environ) == [
        'ROLLBOOK_PROVIDER_KIND: the string "k8s" where "ray" or "ray-actors" or "static" is needed',
        'ROLLBOOK_RECONCILE_RESYNC: the string "soon" where a number is needed',
        'ROLLBOOK_LOGS_LEVEL: the string "loud" where "debug" or "error" or "info" or "warning" is needed',
    ]


def test_a_variable_reaches_what_only_the_kind_of_a_proxy_knows(tmp_path):
    text = changed('kind = "sglang"', 'kind = "miles"')
    environ = {
        "ROLLBOOK_PROXIES_ROUTER_A_KIND": "routed-api",
        "ROLLBOOK_PROXIES_ROUTER_A_OPTIONS_MODEL_NAME": "m",
        "ROLLBOOK_PROXIES_ROUTER_A_OPTIONS_WORKER_KEY": "hunter2",
        "ROLLBOOK_PROXIES_ROUTER_A_EXCLUSIVE": "true",
        "ROLLBOOK_PROXIES_ROUTER_A_REMOVAL_BUDGET": "0.25",
        "ROLLBOOK_POOLS_ROLLOUT_MODEL": "m",
    }
    config = read(tmp_path, text, environ)
    (proxy,) = config.settings.proxies
    assert proxy.options == {
        "model_name": "m",
        "worker_key": {"env": "ROLLBOOK_PROXIES_ROUTER_A_OPTIONS_WORKER_KEY"},
    }
    assert (proxy.exclusive, proxy.removal_budget) == (True, 0.25)
    assert config.settings.pools["rollout"].model == "m"
    assert config.warnings == ()
    del environ["ROLLBOOK_PROXIES_ROUTER_A_KIND"]
    assert len(read(tmp_path, text, environ).warnings) == 2


def test_a_variable_for_two_keys_is_refused(tmp_path):
    text = GOOD + '[[proxies]]\nname = "router_a"\nkind = "sglang"\nadmin_url = "http://b:1"\npools = ["rollout"]'
    assert problems(tmp_path, text, {"ROLLBOOK_PROXIES_ROUTER_A_ADMIN_URL": "http://c:1"}) == [
        "ROLLBOOK_PROXIES_ROUTER_A_ADMIN_URL: stands for two keys; choose names that differ in more than '-' and '_'"
    ]


def test_a_variable_that_overrides_nothing_is_warned_about(tmp_path):
    environ = {"ROLLBOOK_NATS_URI": "x", "ROLLBOOK_DEBUG": "1", "ROLLBOOKISH": "1", "ROLLBOOK_QQQQ": ""}
    assert read(tmp_path, GOOD, environ).warnings == (
        "ROLLBOOK_NATS_URI is set and overrides nothing; did you mean ROLLBOOK_NATS_URL?",
        "ROLLBOOK_QQQQ is set and overrides nothing",
    )


# ---------------------------------------------------------------- secrets, clients, reachability


def test_a_secret_comes_from_a_file_beside_the_configuration(tmp_path):
    (tmp_path / "key").write_text("hunter2\n")
    assert read_secret(SecretRef(file="key"), environ={}, base=tmp_path) == "hunter2"


@pytest.mark.parametrize(
    ("secret", "expected"),
    [
        (SecretRef(env="NOWHERE"), "the environment variable NOWHERE is not set or empty"),
        (SecretRef(file="nowhere"), r"nowhere: cannot be read \(No such file or directory\)"),
        (SecretRef(file="empty"), "empty: is empty"),
        (SecretRef(file="binary"), r"binary: cannot be read \(not text\)"),
    ],
)
def test_a_secret_that_is_not_there(tmp_path, secret, expected):
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match=expected):
        read_secret(secret, environ={}, base=tmp_path)


def test_a_client_needs_no_file(tmp_path):
    environ = {"ROLLBOOK_FLEET": "f", "ROLLBOOK_NATS_URL": "nats://h:4222"}
    client = load_client(None, environ=environ, cwd=tmp_path)
    assert (client.settings.fleet, client.settings.nats.url) == ("f", "nats://h:4222")
    assert client.directory == tmp_path / ".rollbook"


def test_a_client_takes_fleet_and_server_from_a_file(tmp_path):
    (tmp_path / "rollbook.toml").write_text(GOOD)
    client = load_client(None, environ={}, cwd=tmp_path)
    assert (client.settings.fleet, client.settings.nats.url) == ("math-rl", "nats://127.0.0.1:4222")


def test_a_client_without_file_and_variables_says_both_ways(tmp_path):
    with pytest.raises(ConfigError, match=r"rollbook init.*ROLLBOOK_FLEET and ROLLBOOK_NATS_URL together are enough"):
        load_client(None, environ={"ROLLBOOK_FLEET": "f"}, cwd=tmp_path)


def test_an_embedded_log_is_refused_where_workers_could_not_reach_it(tmp_path):
    embedded = read(tmp_path, changed('[nats]\nurl = "nats://127.0.0.1:4222"\n', "")).settings
    refuse_unreachable_log(embedded, ray_nodes=1)
    with pytest.raises(ConfigError, match=r"nats.url: is missing, and this Ray has 3 nodes"):
        refuse_unreachable_log(embedded, ray_nodes=3)
    refuse_unreachable_log(read(tmp_path, GOOD).settings, ray_nodes=3)


# ---------------------------------------------------------------- the page


def test_the_page_is_current():
    assert PAGE.read_text() == "\n".join(page()) + "\n", "run `make docs`"


def test_the_example_of_the_page_can_be_read(tmp_path):
    lines = [line.removeprefix("    ") for line in PAGE.read_text().splitlines() if line.startswith("    ")]
    assert read(tmp_path, "\n".join(lines)).settings.fleet == "math-rl"


def test_every_variable_of_the_page_overrides_something(tmp_path):
    (tmp_path / "rollbook.toml").write_text(GOOD)
    named = set(re.findall(r"^\| `(ROLLBOOK_[A-Z_]+)`", PAGE.read_text(), re.MULTILINE))
    assert len(named) == 6
    assert named <= set(variables(Settings, tomllib.loads(GOOD)))
