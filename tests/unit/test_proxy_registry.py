"""From a kind's name to its proxy."""

import pytest

from rollbook.adapters.proxies.kinds import ProxyConfig
from rollbook.adapters.proxies.registry import BUILT_IN, UnusableKind, find_kind, kind_names
from rollbook.adapters.proxies.urls import UnusableURL
from rollbook.events import RollbookError


def config(admin_url="http://127.0.0.1:1", **more):
    return ProxyConfig(name="router-a", fleet="math", admin_url=admin_url, **more)


def test_a_known_kind_is_made_without_connecting():
    proxy = find_kind("sglang").make(config(api_key="hunter2"))
    assert (proxy.name, proxy.kind) == ("router-a", "sglang")
    assert proxy.capabilities.tag
    assert proxy.capabilities.async_add
    assert "hunter2" not in repr(proxy)


def test_what_a_proxy_is_made_from_shows_no_secret():
    made_from = config(api_key="hunter2", secrets={"worker_key": "hunter3"})
    assert "hunter" not in f"{made_from!r} {made_from} {list(made_from.__rich_repr__())}"


def test_an_unknown_kind_names_the_nearest_or_those_that_there_are():
    with pytest.raises(UnusableKind, match="no kind 'sgl-lang'; did you mean 'sglang'"):
        find_kind("sgl-lang")
    with pytest.raises(UnusableKind, match=rf"no kind 'envoy'; known here: {', '.join(kind_names())}$"):
        find_kind("envoy")


def test_every_kind_goes_by_its_own_name():
    assert all(find_kind(name).name == name for name in kind_names())
    assert kind_names()[: len(BUILT_IN)] == [point.name for point in BUILT_IN]


def test_an_admin_url_that_cannot_be_one_is_refused_at_once():
    with pytest.raises(UnusableURL, match="must begin with"):
        find_kind("sglang").make(config("127.0.0.1:30000"))


def test_a_key_that_no_header_can_carry_is_refused_without_repeating_it():
    with pytest.raises(RollbookError, match="api_key") as caught:
        find_kind("sglang").make(config(api_key="hunter2\nhunter3"))
    assert "hunter" not in str(caught.value)
