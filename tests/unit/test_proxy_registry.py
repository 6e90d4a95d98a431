"""From a kind's name to its proxy."""

import pytest

from rollbook.adapters.proxies.registry import make_proxy
from rollbook.adapters.proxies.urls import UnusableURL
from rollbook.events import RollbookError


def test_a_known_kind_is_made_without_connecting():
    proxy = make_proxy("sglang", name="router-a", admin_url="http://127.0.0.1:1", fleet="math", api_key="hunter2")
    assert (proxy.name, proxy.kind) == ("router-a", "sglang")
    assert proxy.capabilities.tag
    assert proxy.capabilities.async_add
    assert "hunter2" not in repr(proxy)


def test_an_unknown_kind_names_the_known_ones_and_the_nearest():
    with pytest.raises(RollbookError, match="no kind 'sgl-lang', only sglang; did you mean 'sglang'"):
        make_proxy("sgl-lang", name="a", admin_url="http://h", fleet="f")
    with pytest.raises(RollbookError, match=r"no kind 'envoy', only sglang$"):
        make_proxy("envoy", name="a", admin_url="http://h", fleet="f")


def test_an_admin_url_that_cannot_be_one_is_refused_at_once():
    with pytest.raises(UnusableURL, match="must begin with"):
        make_proxy("sglang", name="a", admin_url="127.0.0.1:30000", fleet="f")


def test_a_key_that_no_header_can_carry_is_refused_without_repeating_it():
    with pytest.raises(RollbookError, match="api_key") as caught:
        make_proxy("sglang", name="a", admin_url="http://h", fleet="f", api_key="hunter2\nhunter3")
    assert "hunter" not in str(caught.value)
