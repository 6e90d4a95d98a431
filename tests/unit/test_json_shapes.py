"""What commands print with `--json` keeps its shape, and is what the pages show."""

from pathlib import Path

import msgspec
import pytest
from golden.shapes import DOCUMENTS, FOLDER, PAGES, path_of, text

from rollbook.events import FACTS
from rollbook.projections.history.narrative import Narrative

HOW = "a field may come, none may go: see tests/golden/shapes.py"
DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_document_has_its_file_and_every_file_its_document():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(DOCUMENTS)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_as_its_file_says(name):
    assert text(DOCUMENTS[name]) == path_of(name).read_text(), HOW


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_can_be_read_back(name):
    content = path_of(name).read_bytes()
    found = msgspec.json.decode(content, type=type(DOCUMENTS[name]))
    if isinstance(found, Narrative):
        found = with_facts(found, msgspec.json.decode(content))
    assert found == DOCUMENTS[name]


def with_facts(story, tree):
    """A story in which each event has the fact that its type says."""
    lives = []
    for life, told in zip(story.lives, tree["lives"], strict=True):
        facts = [msgspec.convert(event["fact"], FACTS[event["type"]]) for event in told["events"]]
        events = [msgspec.structs.replace(event, fact=fact) for event, fact in zip(life.events, facts, strict=True)]
        lives.append(msgspec.structs.replace(life, events=tuple(events)))
    return msgspec.structs.replace(story, lives=tuple(lives))


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_page_shows_it(name):
    assert f"```json\n{path_of(name).read_text()}```" in (DOCS / PAGES.get(name, "cli.md")).read_text()
