"""Which ports a worker gets: static ones or none, consecutive ones, its former ones, never one twice."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.process import run_python

from rollbook.adapters.local_ports import DYNAMIC, rotated
from rollbook.adapters.ray.ports import PortInfo, PortTaken, choose, of_rank, problems


def chosen(*infos, former=None, taken=(), candidates=range(100, 200)):
    return choose(infos, former=former or {}, is_free=lambda port: port not in taken, candidates=candidates)


def test_a_static_port_is_that_port_or_an_error():
    assert chosen(PortInfo(port=8000), taken={8001}) == {"primary": 8000}
    with pytest.raises(PortTaken, match="port 'primary': 8000 is in use on this node; free it, or give 0"):
        chosen(PortInfo(port=8000), taken={8000})


def test_several_follow_each_other():
    assert chosen(PortInfo(count=3), taken={100, 104}) == {"primary": 101}
    with pytest.raises(PortTaken, match="one of 8000-8002 is in use"):
        chosen(PortInfo(port=8000, count=3), taken={8002})
    with pytest.raises(PortTaken, match="no 3 ports one after the other are free"):
        chosen(PortInfo(count=3), taken=range(102, 300, 3))


def test_a_run_ends_at_the_last_port():
    with pytest.raises(PortTaken):
        chosen(PortInfo(count=2), candidates=[65535])


def test_its_former_port_comes_first_if_it_is_free_and_kept():
    former = {"primary": 150}
    assert chosen(PortInfo(), former=former) == {"primary": 150}
    assert chosen(PortInfo(), former=former, taken={150}) == {"primary": 100}
    assert chosen(PortInfo(count=2), former=former, taken={151}) == {"primary": 100}
    assert chosen(PortInfo(keep=False), former=former) == {"primary": 100}
    assert chosen(PortInfo(port=8000), former=former) == {"primary": 8000}


def test_static_ones_are_chosen_first():
    assert chosen(PortInfo(name="rpc"), PortInfo(port=100)) == {"primary": 100, "rpc": 101}
    assert chosen(PortInfo(name="rpc"), PortInfo(port=100), former={"rpc": 100}) == {"primary": 100, "rpc": 101}


def test_what_is_per_master_belongs_to_rank_0():
    infos = (PortInfo(), PortInfo(name="master", per="master"))
    assert [info.name for info in of_rank(infos, 0)] == ["primary", "master"]
    assert [info.name for info in of_rank(infos, 1)] == ["primary"]


def test_the_dynamic_ones_are_all_tried_whatever_the_start():
    for start in (0, 1, len(DYNAMIC) - 1, len(DYNAMIC), 65_535):
        assert sorted(rotated(start)) == list(DYNAMIC)
    assert rotated(5)[0] == DYNAMIC[5]


@pytest.mark.parametrize(
    ("infos", "problem"),
    [
        ([PortInfo(), PortInfo()], "port 'primary' is described twice"),
        ([PortInfo(name="a-b")], "port 'a-b' cannot be written in a template"),
        ([PortInfo(port=65536)], "port 65536 is no port; 0 lets one be chosen"),
        ([PortInfo(port=-1)], "port -1 is no port"),
        ([PortInfo(count=0)], "count 0; it must be from 1 to 1024"),
        ([PortInfo(count=1025)], "count 1025"),
        ([PortInfo(port=65535, count=2)], "2 ports from 65535 on end above 65535"),
        ([PortInfo(port=80, count=3), PortInfo(name="b", port=82)], "ports 'primary' and 'b' overlap"),
        ([PortInfo(per="cell")], "is per 'cell', which is neither 'worker' nor 'master'"),
    ],
)
def test_what_is_wrong_is_said(infos, problem):
    (found,) = problems(infos)
    assert problem in found


def test_nothing_is_wrong_with_what_can_be():
    good = (PortInfo(port=80, count=2), PortInfo(name="rpc"), PortInfo(name="b", port=82, per="master"))
    assert list(problems(good)) == []


KINDS = st.lists(
    st.tuples(st.sampled_from([0, 0, 10, 20, 30]), st.integers(1, 4), st.integers(0, 40), st.booleans()), max_size=5
)


@given(KINDS, st.sets(st.integers(1, 60)))
def test_no_port_is_given_twice_nor_one_that_is_taken(kinds, taken):
    infos = [
        PortInfo(name=f"p{i}", port=port, count=count, keep=keep) for i, (port, count, _, keep) in enumerate(kinds)
    ]
    former = {f"p{i}": port for i, (_, _, port, _) in enumerate(kinds)}
    try:
        found = chosen(*infos, former=former, taken=taken, candidates=range(1, 60))
    except PortTaken:
        return
    used = [found[info.name] + index for info in infos for index in range(info.count)]
    assert len(used) == len(set(used))
    assert not taken.intersection(used)
    assert all(found[info.name] == info.port for info in infos if info.port)


def test_a_limit_of_open_files_is_named():
    code = """
        import resource
        from rollbook.adapters.ray.holding import Held
        from rollbook.adapters.ray.ports import PortInfo, PortTaken

        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        try:
            Held([PortInfo(count=200)], 0, {})
        except PortTaken as exc:
            print(exc)
        Held([PortInfo()], 0, {}).let_go()
    """
    told = run_python(code).stdout
    assert re.match(
        r"\d+ ports are held while free ones are looked for, and then Too many open files: raise .*ulimit -n", told
    )
