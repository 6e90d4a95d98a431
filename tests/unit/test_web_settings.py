"""Where the web port may listen, and what is said about an open one."""

import json

import pytest

from rollbook.adapters.cli.main import run
from rollbook.adapters.settings import ConfigError, WebSettings, load

BASE = 'fleet = "f"\n[provider]\nkind = "static"\n[provider.workers.rollout-0-0]\nprimary = "127.0.0.2:1"\n'


def settings(tmp_path, table):
    (tmp_path / "rollbook.toml").write_text(BASE + table)
    return load(None, environ={}, cwd=tmp_path).settings


def test_it_is_off_unless_it_is_asked_for(tmp_path):
    assert settings(tmp_path, "").web == WebSettings(listen=None)


@pytest.mark.parametrize(
    ("listen", "exposed"),
    [
        ("127.0.0.1:9464", False),
        ("127.1.2.3:1", False),
        ("[::1]:9464", False),
        ("localhost:9464", False),
        ("0.0.0.0:9464", True),
        ("[::]:9464", True),
        ("10.0.0.7:9464", True),
        ("controller:9464", True),
    ],
)
def test_who_can_reach_it(tmp_path, listen, exposed):
    assert settings(tmp_path, f'[web]\nlisten = "{listen}"').web.exposed is exposed


@pytest.mark.parametrize("listen", [":9464", "9464", "127.0.0.1", "127.0.0.1:0", "http://127.0.0.1:9464", "::1:9464"])
def test_what_is_no_address_is_refused_by_its_key(tmp_path, listen):
    with pytest.raises(ConfigError, match=r"web\.listen"):
        settings(tmp_path, f'[web]\nlisten = "{listen}"')


@pytest.mark.parametrize("host", ["", "a:80", "http://a"])
def test_what_is_no_host_name_is_refused_by_its_key(tmp_path, host):
    with pytest.raises(ConfigError, match=r"web\.hosts"):
        settings(tmp_path, f'[web]\nhosts = ["{host}"]')


@pytest.mark.parametrize(("listen", "warnings"), [("127.0.0.1:9464", 0), ("0.0.0.0:9464", 1)])
def test_check_warns_of_an_open_port(tmp_path, capsys, listen, warnings):
    (tmp_path / "rollbook.toml").write_text(BASE + f'[web]\nlisten = "{listen}"')
    assert run(["check", "-c", str(tmp_path / "rollbook.toml"), "--json"], {}) == 0
    told = json.loads(capsys.readouterr().out)["warnings"]
    assert len(told) == warnings
    assert all("other machines" in one for one in told)
