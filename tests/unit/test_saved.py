"""A plan that is kept: read back only whole, and refused once the world has moved."""

import msgspec
import pytest
from support.core import FLEET

from rollbook.projections.looking.preview import Change, Line, Preview
from rollbook.projections.looking.saved import MOST_SHOWN, Overtaken, UnusablePlan, check, load_saved, save


def line(worker="rollout-0-0", change=Change.REGISTER, **more):
    fields = {"proxy": "a", "incarnation": 1, "url": "http://h:1", "reason": ""} | more
    return Line(change=change, worker=worker, **fields)


def preview(*lines, sequence=7, **more):
    return Preview(fleet=FLEET, sequence=sequence, time="", lines=lines, **more)


def test_what_was_kept_is_read_back():
    saved = save(preview(line()), "a")
    assert load_saved(msgspec.json.format(msgspec.json.encode(saved)), FLEET) == saved


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data[:-5], "not a plan"),
        (lambda data: b"\xff", "not a plan"),
        (lambda data: b"[]", "not a plan"),
        (lambda data: b'{"format":' + b"[" * 10_000 + b"]" * 10_000 + b"}", "not a plan"),
        (lambda data: data.replace(b"rollout-0-0", b"rollout-9-0"), "its digest does not fit"),
        (lambda data: data.replace(b'"format":1', b'"format":2'), "of format 2"),
    ],
)
def test_what_is_not_whole_is_no_plan(change, said):
    with pytest.raises(UnusablePlan, match=said):
        load_saved(change(msgspec.json.encode(save(preview(line()), None))), FLEET)


def test_another_fleets_plan_is_refused():
    with pytest.raises(UnusablePlan, match="for fleet 'f', and this is 'g'"):
        load_saved(msgspec.json.encode(save(preview(line()), None)), "g")


def test_the_same_to_do_fits_at_any_sequence_and_in_any_order():
    check(save(preview(line(), line("rollout-1-0")), None), preview(line("rollout-1-0"), line(), sequence=99))


def test_what_is_withheld_by_a_person_is_planned_for_its_release():
    held = line(change=Change.WITHHELD, would=Change.REGISTER)
    check(save(preview(held), None), preview(line()))


def test_closed_gates_and_entries_of_others_are_no_part_of_it():
    closed = line("rollout-1-0", Change.WITHHELD, would=Change.REGISTER, gate="ready", url=None)
    foreign = line(None, Change.FOREIGN, incarnation=None)
    assert save(preview(line(), closed, foreign), None).entries == save(preview(line()), None).entries


@pytest.mark.parametrize(
    "now",
    [
        (line(incarnation=2),),
        (line(url="http://h:2"),),
        (line(change=Change.DEREGISTER),),
        (line(proxy="b"),),
        (line(), line("rollout-1-0")),
        (),
    ],
)
def test_anything_else_to_do_is_refused(now):
    with pytest.raises(Overtaken, match="made at sequence 7 and does not fit any more at 8; nothing was done"):
        check(save(preview(line()), None), preview(*now, sequence=8))


def test_a_refusal_says_what_moved():
    fresh = preview(line("rollout-1-0"), sequence=8, unreachable={"b": "refused"})
    with pytest.raises(Overtaken) as caught:
        check(save(preview(line()), None), fresh)
    assert str(caught.value).splitlines()[1:-1] == [
        "  no more: register rollout-0-0 #1 http://h:1 at a",
        "  new: register rollout-1-0 #1 http://h:1 at a",
        "  b does not answer: refused",
    ]


def test_a_refusal_of_thousands_of_lines_is_short():
    many = [line(f"rollout-{number}-0") for number in range(1000)]
    with pytest.raises(Overtaken) as caught:
        check(save(preview(), None), preview(*many))
    assert len(str(caught.value).splitlines()) == MOST_SHOWN + 3
