"""Who is lost: missing in two scans in a row, and the same process both times."""

from rollbook.adapters.ray.scan import Scan


def test_only_who_is_missing_twice_is_lost():
    scan = Scan()
    assert scan.lost({"a"}, {"a": 1, "b": 1}) == []
    assert scan.lost({"a"}, {"a": 1, "b": 1}) == ["b"]


def test_a_process_made_since_is_another_one():
    scan = Scan()
    assert scan.lost(set(), {"a": 1}) == []
    assert scan.lost(set(), {"a": 2}) == []
    assert scan.lost(set(), {"a": 2}) == ["a"]


def test_who_was_listed_meanwhile_begins_anew():
    scan = Scan()
    assert scan.lost(set(), {"a": 1}) == []
    assert scan.lost({"a"}, {"a": 1}) == []
    assert scan.lost(set(), {"a": 1}) == []


def test_who_should_not_be_there_is_not_missed():
    scan = Scan()
    assert scan.lost(set(), {}) == []
    assert scan.lost({"x"}, {}) == []
