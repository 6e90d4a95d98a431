"""What HAProxy says and what its servers are called: read back as it was written, and nothing else taken for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollbook.adapters.proxies.haproxy_text import (
    SERVER_NAME,
    Life,
    Server,
    Unreadable,
    read_answer,
    read_info,
    read_name,
    read_running,
    read_servers,
    server_name,
)
from rollbook.events.facts.base import MAX_INTEGER
from rollbook.projections.ports import Done, Failed, Unsupported

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,128}", fullmatch=True)
LIVES = st.builds(Life, NAMES, st.integers(1, MAX_INTEGER), NAMES)

COLUMNS = (
    "be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight "
    "srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state srv_agent_state "
    "bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl srv_check_port srv_check_addr "
    "srv_agent_addr srv_agent_port"
)
"""Of 2.6.12."""
STATE = f"""1
# {COLUMNS}
3 workers 1 rollout-0-0.3.math-rl 127.0.0.1 2 0 1 1 0 6 3 3 6 0 0 0 - 18001 - 0 0 - - 0
3 workers 2 rollout-1-0.1.math-rl ::1 0 1 1 1 0 1 0 0 2 0 0 0 - 18002 - 1 0 - - 0
3 workers 3 by-hand - 2 8 1 1 0 1 0 0 0 0 0 0 a.example 80 - 0 0 - - 0"""
CONNECTIONS = """\
# bkname/svname bkid/svid addr port - purge_delay used_cur used_max need_est unsafe_nb safe_nb idle_lim idle_cur idle_per_thr[2]
workers/rollout-0-0.3.math-rl 3/1 127.0.0.1 18001 - 0 7 9 1 0 0 0 0
workers/by-hand 3/3 - 80 - 0 0 0 0 0 0 0 0 0 0"""  # noqa: E501 - as it is said


@given(LIVES)
def test_a_name_says_whose_the_server_is(life):
    """I11."""
    name = server_name(life)
    assert SERVER_NAME.fullmatch(name)
    assert read_name(name) == life


@given(LIVES, LIVES)
def test_two_lives_never_share_a_name(one, other):
    """I3."""
    assert (server_name(one) == server_name(other)) == (one == other)


@given(st.text())
def test_a_name_that_is_read_as_ours_is_the_one_that_we_would_write(name):
    life = read_name(name)
    assert life is None or server_name(life) == name


@pytest.mark.parametrize("name", ["", "web1", "a.b", "a.0.f", "a.01.f", "a.1.f.g", "a.-1.f", "a.1.", ".1.f", "a.1.f\n"])
def test_other_names_are_nobodys(name):
    assert read_name(name) is None


def test_a_table_of_servers_is_read_by_its_columns_names():
    assert read_servers(STATE) == [
        Server("rollout-0-0.3.math-rl", "127.0.0.1", 18001, tls=False, up=True, in_rotation=True),
        Server("rollout-1-0.1.math-rl", "::1", 18002, tls=True, up=None, in_rotation=False),
        Server("by-hand", "a.example", 80, tls=False, up=None, in_rotation=False),
    ]
    assert read_servers(f"1\n# {COLUMNS}") == []


@given(st.permutations(COLUMNS.split()), st.lists(st.just("a_newer_column"), max_size=3))
def test_the_order_of_columns_and_columns_that_are_new_make_no_difference(columns, newer):
    values = dict(zip(COLUMNS.split(), STATE.splitlines()[2].split(), strict=True))
    row = " ".join([*(values[column] for column in columns), *("?" for _ in newer)])
    assert read_servers(f"1\n# {' '.join([*columns, *newer])}\n{row}") == read_servers(STATE)[:1]


def test_connections_in_use_are_read_whatever_the_number_of_threads():
    assert read_running(CONNECTIONS) == {"rollout-0-0.3.math-rl": 7, "by-hand": 0}


@given(st.text(alphabet=st.sampled_from("# 1-\nabc.srv_addr"), max_size=200))
def test_no_text_is_read_as_a_table_by_chance(text):
    for read in (read_servers, read_running):
        try:
            assert read(text) in ([], {})
        except Unreadable:
            continue


@pytest.mark.parametrize(
    "text",
    ["", "1", "Unknown command, but maybe", "<html>", STATE.replace("srv_port", "port"), STATE[:-40], STATE + "\n3 x"],
)
def test_what_is_no_table_of_servers_is_said(text):
    with pytest.raises(Unreadable):
        read_servers(text)


def test_the_version_is_that_of_haproxy_and_of_nothing_else():
    assert read_info("Name: HAProxy\nVersion: 2.6.12-1+deb12u3\nNbthread: 2\nDescription: a: b") == "2.6.12-1+deb12u3"
    for text in ("", "Name: HAProxy", "Version: 2.6", "Name: nginx\nVersion: 1.2", "HTTP/1.1 400 Bad Request"):
        with pytest.raises(Unreadable):
            read_info(text)


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("", Done()),
        ("New server registered.", Done()),
        ("Server deleted.", Done()),
        ("No such server.", Done()),
        ("No such backend.", Failed("No such backend.")),
        (
            "Already exists a server with the same name in backend.",
            Failed("Already exists a server with the same name in backend."),
        ),
        (
            "Server still has connections attached to it, cannot remove it.",
            Failed("Server still has connections attached to it, cannot remove it."),
        ),
        (
            "Backend must use a dynamic load balancing to support dynamic servers.",
            Unsupported("Backend must use a dynamic load balancing to support dynamic servers."),
        ),
        ("Unknown command, but maybe\n  help", Failed("Unknown command, but maybe help")),
    ],
)
def test_an_answer_is_what_it_says(said, answer):
    """What is not known is a failure in its own words."""
    assert read_answer(said) == answer
