"""What comes from outside reaches a terminal as text only, and JSON stays JSON whatever the output can write."""

import io
import json
import sys

import pytest

from rollbook.adapters.cli.output import Lines, one_line, out_json, say

CURSED = "\x1b[31m \x9b31m \x1b]0;title\x07 \r \x7f \u202eevil\u2066 \u2028 \x00"
HARMLESS = "ü → 😀 <b>&\"'"


def moves(text):
    return [letter for letter in text if not letter.isprintable() and letter != "\n"]


@pytest.fixture
def output(monkeypatch):
    def output(encoding):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace")
        monkeypatch.setattr(sys, "stdout", stream)
        return stream

    return output


def written(stream):
    stream.flush()
    return stream.buffer.getvalue().decode(stream.encoding)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
def test_a_document_is_json_on_every_terminal_and_moves_nothing(output, encoding):
    stream = output(encoding)
    out_json({"reason": CURSED + HARMLESS})
    assert json.loads(written(stream)) == {"reason": CURSED + HARMLESS}
    assert moves(written(stream)) == []
    assert len(written(stream).splitlines()) == 1


def test_a_document_is_readable_where_it_can_be(output):
    stream = output("utf-8")
    out_json(HARMLESS)
    assert "ü → 😀" in written(stream)


def test_a_line_is_one_line_whoever_made_its_pieces(output):
    stream = output("utf-8")
    Lines().write(["reason: ", (CURSED + "\n" + HARMLESS, "red")])
    assert moves(written(stream)) == []
    assert len(written(stream).splitlines()) == 1
    assert moves(one_line(CURSED)) == []


def test_what_is_told_beside_the_data_moves_nothing_either(capsys):
    say(f"two lines\n{CURSED}")
    told = capsys.readouterr().err
    assert moves(told) == []
    assert len(told.splitlines()) == 2
