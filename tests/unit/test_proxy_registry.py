"""From a kind's name to its proxy."""

import pytest

from rollbook.adapters.proxies.kinds import ProxyConfig
from rollbook.adapters.proxies.registry import BUILT_IN, GROUP, UnusableKind, find_kind, kind_names
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


# ---------------------------------------------------------------- other packages


def installed(monkeypatch, folder, name, points, code=""):
    """A package `name` on the path, with the entry points `points`, as pip would leave it."""
    (folder / f"{name}.py").write_text(code)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n" + "\n".join(points) + "\n")
    monkeypatch.syspath_prepend(folder)


KIND = "from rollbook.adapters.proxies.kinds import ProxyKind\n"


def test_a_kind_of_another_package_is_found(monkeypatch, tmp_path):
    code = KIND + "def make(config): return config\nMINE = ProxyKind(name='abacus', make=make)\n"
    installed(monkeypatch, tmp_path, "rollbook_pebbles", ["abacus = rollbook_pebbles:MINE"], code)
    assert find_kind("abacus").make(config()) == config()
    assert "abacus" in kind_names()
    with pytest.raises(UnusableKind, match="did you mean 'abacus'"):
        find_kind("abacas")


@pytest.mark.parametrize(
    ("name", "code", "expected"),
    [
        (
            "breaks",
            "1 / 0",
            r"'breaks' of rollbook_breaks \(rollbook_breaks:MINE\) cannot be loaded: ZeroDivisionError",
        ),
        ("without", "", "cannot be loaded: AttributeError"),
        ("other", "MINE = 5", "is no ProxyKind of that name"),
        ("misnamed", KIND + "MINE = ProxyKind(name='x', make=print)", "is no ProxyKind of that name"),
    ],
)
def test_a_package_that_does_not_work_is_named(monkeypatch, tmp_path, name, code, expected):
    installed(monkeypatch, tmp_path, f"rollbook_{name}", [f"{name} = rollbook_{name}:MINE"], code)
    with pytest.raises(UnusableKind, match=expected):
        find_kind(name)


def test_two_packages_with_one_kind_are_named(monkeypatch, tmp_path):
    for package in ("rollbook_left", "rollbook_right"):
        (tmp_path / package).mkdir()
        installed(monkeypatch, tmp_path / package, package, [f"twice = {package}:MINE"])
    with pytest.raises(UnusableKind, match=r"by rollbook_left .* and rollbook_right .*; uninstall all but one"):
        find_kind("twice")


def test_no_package_takes_the_place_of_a_kind_of_rollbooks_own(monkeypatch, tmp_path):
    installed(monkeypatch, tmp_path, "rollbook_usurper", ["sglang = rollbook_usurper:MINE"], "1 / 0")
    find_kind.cache_clear()
    assert find_kind("sglang").make(config()).kind == "sglang"
    assert kind_names().count("sglang") == 1
