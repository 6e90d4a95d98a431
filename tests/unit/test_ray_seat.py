"""Text from addresses: commands, environment and URLs of a worker, its own and others'."""

import pytest

from rollbook.adapters.ray.seat import Neighbour, Seat, TemplateError, check, needs, render, url_of
from rollbook.projections.ports import HostAndPort

SEAT = Seat(
    name="rollout-0-1",
    incarnation=7,
    rank=1,
    cell_size=2,
    cell_incarnation=9,
    host="10.0.0.2",
    rank0="rollout-0-0",
    workers={
        "rollout-0-0": Neighbour(
            {"primary": HostAndPort("10.0.0.1", 8000), "master": HostAndPort("10.0.0.1", 9000)},
            {"primary": "https://{address}/v1"},
        ),
        "rollout-0-1": Neighbour(
            {
                "primary": HostAndPort("10.0.0.2", 8000),
                "rpc": HostAndPort("10.0.0.2", 7000),
                "master": HostAndPort("10.0.0.1", 9000),
            },
            {"rpc": "tcp://{host}:{port}"},
        ),
        "reward-0-0": Neighbour({"primary": HostAndPort("fd00::1", 80)}),
    },
)


def test_whose_addresses_are_whose():
    assert SEAT.own.keys() == {"primary", "rpc", "master"}
    assert SEAT.own["primary"] == HostAndPort("10.0.0.2", 8000)
    assert SEAT.of_rank0 == {"primary": HostAndPort("10.0.0.1", 8000), "master": SEAT.own["master"]}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("", ""),
        ("serve --tag {{x}}", "serve --tag {x}"),
        ("{name}/{incarnation} {rank} of {cell_size}, {cell_incarnation}", "rollout-0-1/7 1 of 2, 9"),
        ("--host {host} --port {primary.port}", "--host 10.0.0.2 --port 8000"),
        ("{rpc} {rpc[1]} {rpc[2].port} {rpc.url} {rpc[1].url}", None),
        ("--dist-init-addr {master}", "--dist-init-addr 10.0.0.1:9000"),
        ("{rank0.primary} {rank0.primary.url}", "10.0.0.1:8000 https://10.0.0.1:8000/v1"),
        ("{workers.reward-0-0.primary}", "[fd00::1]:80"),
        ("{workers.reward-0-0.primary.host}", "fd00::1"),
        ("{workers.reward-0-0.primary.url}", "http://[fd00::1]:80"),
    ],
)
def test_a_field_stands_for_what_it_names(template, text):
    wanted = text or "10.0.0.2:7000 10.0.0.2:7001 7002 tcp://10.0.0.2:7000 tcp://10.0.0.2:7001"
    assert render(template, SEAT) == (wanted if template else "")


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{", "braces that are to stay are written twice"),
        ("{'a': 1}", "a field has neither '!' nor ':' behind it"),
        ("{}", "{} is nothing that can be filled in"),
        ("{primary.scheme}", "is nothing that can be filled in; there are name, incarnation"),
        ("{name.port}", "is nothing that can be filled in"),
        ("{workers.reward-0-0}", "is nothing that can be filled in"),
        ("{primary!r}", "neither '!' nor ':'"),
        ("{primary.port:05}", "neither '!' nor ':'"),
        ("{session}", "worker 'rollout-0-1' has no address 'session'"),
        ("{rank0.rpc}", "worker 'rollout-0-0' has no address 'rpc'"),
        ("{workers.reward-1-0.primary}", "worker 'reward-1-0' has no address 'primary'"),
    ],
)
def test_what_stands_for_nothing_is_named(template, problem):
    with pytest.raises(TemplateError) as refused:
        render(template, SEAT)
    assert problem in str(refused.value)


def test_what_can_never_be_rendered_is_known_before_any_start():
    check("{primary} {workers.x.y} {rank0.z}")
    check("{primary} {rank0.rpc} {workers.x.y}", own={"primary": 1}, rank0={"rpc": 1})
    with pytest.raises(TemplateError, match=r"\{rpc\}: there is no port 'rpc', only primary"):
        check("{rpc}", own={"primary": 1})
    with pytest.raises(TemplateError, match=r"\{rank0.rpc\}: there is no port 'rpc', only none"):
        check("{rank0.rpc}", own={"rpc": 1}, rank0={})


def test_whom_a_template_names_must_be_known_first():
    assert needs(["{name} {rank0.rpc} {workers.a-0-0.primary.port}", "{workers.b.rpc[1]}{primary}"]) == {
        ("a-0-0", "primary"),
        ("b", "rpc"),
    }


def test_urls():
    assert url_of(HostAndPort("h", 1)) == "http://h:1"
    assert url_of(HostAndPort("::1", 1), "tcp://{host}:{port}/{address}") == "tcp://[::1]:1/[::1]:1"
