"""A configuration that names a server, how it is read, and what is said of one that is wrong."""

import pytest

from rollbook.adapters.settings import ConfigError, load

GOOD = """
fleet = "math-rl"

[nats]
url = "nats://127.0.0.1:4222"

[provider]
kind = "ray"

[pools.rollout]

[[proxies]]
name = "router-a"
kind = "sglang"
admin_url = "http://127.0.0.1:30000"
pools = ["rollout"]
"""


def read(tmp_path, text, environ=None):
    (tmp_path / "rollbook.toml").write_text(text)
    return load(None, environ=environ or {}, cwd=tmp_path)


def problems(tmp_path, text, environ=None):
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text, environ)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return list(caught.value.problems)


def changed(old, new):
    assert old in GOOD
    return GOOD.replace(old, new)
