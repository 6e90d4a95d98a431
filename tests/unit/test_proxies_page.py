"""The table of what each kind can do says what the adapters say of themselves."""

import re
from pathlib import Path

from rollbook.adapters.proxies.haproxy import HaproxyOptions
from rollbook.adapters.proxies.kinds import NoOptions, ProxyConfig
from rollbook.adapters.proxies.registry import BUILT_IN, find_kind
from rollbook.adapters.proxies.routed_api import RoutedApiOptions

FOLDER = Path(__file__).parents[2] / "docs" / "proxies"
OPTIONS = {"haproxy": HaproxyOptions(backend="b"), "routed-api": RoutedApiOptions(model_name="m")}


def row(kind):
    """What stands behind a kind's name and page."""
    admin_url = re.sub(r"host:port|/path", "localhost:1", kind.example)
    made = kind.make(ProxyConfig(name="a", fleet="f", admin_url=admin_url, options=OPTIONS.get(kind.name, NoOptions())))
    can = made.capabilities
    said = [can.list, can.remove, can.tag, can.drain, can.async_add, can.probes_on_add, kind.roles]
    words = ["yes" if yes else "no" for yes in said]
    words[4] = "a promise" if can.async_add else "done"
    return words


def test_the_table_says_what_the_adapters_say():
    rows = re.findall(
        r"^\| `([\w-]+)` \| \[[^]]*\]\(([\w.-]+)\) \| (.*) \|$", (FOLDER / "index.md").read_text(), re.MULTILINE
    )
    assert [kind for kind, _, _ in rows] == [point.name for point in BUILT_IN]
    for kind, page, words in rows:
        assert words.split(" | ") == row(find_kind(kind)), kind
        assert page == f"{kind}.md"


def test_every_kind_has_an_example_of_its_table_on_its_page():
    for point in BUILT_IN:
        assert f'kind = "{point.name}"' in (FOLDER / f"{point.name}.md").read_text()
