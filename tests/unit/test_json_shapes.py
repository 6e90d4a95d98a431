"""What commands print with `--json` keeps its shape, and is what docs/cli.md shows."""

from pathlib import Path

import msgspec
import pytest
from golden.shapes import DOCUMENTS, FOLDER, path_of, text

HOW = "a field may come, none may go: see tests/golden/shapes.py"
PAGE = Path(__file__).resolve().parents[2] / "docs" / "cli.md"


def test_every_document_has_its_file_and_every_file_its_document():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(DOCUMENTS)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_as_its_file_says(name):
    assert text(DOCUMENTS[name]) == path_of(name).read_text(), HOW


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_can_be_read_back(name):
    document = DOCUMENTS[name]
    assert msgspec.json.decode(path_of(name).read_bytes(), type=type(document)) == document


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_page_shows_it(name):
    assert f"```json\n{path_of(name).read_text()}```" in PAGE.read_text()
