"""The pages for people hang together: every page is reachable, and every link leads somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md"])
CODE = re.compile(r"^```.*?^```|^ {4}.*?$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def links(page):
    """Where a page points to, its examples left out."""
    return LINK.findall(CODE.sub("``", page.read_text()))


def anchors(page):
    """Its headings, as GitHub makes names of them."""
    headings = HEADING.findall(re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page):
    dead = []
    for link in links(page):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_relative_to(ROOT) or not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert not dead


def test_the_index_links_every_page():
    assert {path.partition("#")[0] for path in links(DOCS / "index.md")} == {
        page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md") if page != DOCS / "index.md"
    }


def test_the_pages_that_code_and_commands_name_are_there():
    sources = [
        *(path for root in ("events", "projections", "adapters", "bench") for path in (ROOT / root).rglob("*.py")),
        *ROOT.glob("*.yaml"),
        *(ROOT / "deploy").iterdir(),
    ]
    named = {name for source in sources for name in re.findall(r"\bdocs/[\w/-]+\.md", source.read_text())}
    assert "docs/configuration.md" in named
    assert not [name for name in named if not (ROOT / name).is_file()]
