"""The tables of docs/*.md match the committed results, and commands make these results."""

import ast
import re
from pathlib import Path

import pytest
from benchmarks import surprises, tables
from benchmarks.evidence import theory

from tests.tracked import tracked

ROOT = Path(__file__).parents[1]


def test_tables_are_current() -> None:
    made = tables.tables()
    documents = {path.name: path.read_text(encoding="utf-8") for path in tables.DOCUMENTS}
    for name, document in documents.items():
        assert tables.filled(document, made) == document, f"{name}: python -m benchmarks.tables"
    for name in made:
        places = [document.count(tables.start(name)) for document in documents.values()]
        assert sum(places) == 1, f"the table {name!r} has {sum(places)} places in docs/"


def test_the_page_of_surprises_is_current() -> None:
    assert (surprises.FOLDER / "README.md").read_text(encoding="utf-8") == surprises.page()


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.name)
def test_every_table_has_a_header(page: Path) -> None:
    """A blank line within a table turns the rest of it into plain text."""
    lines = page.read_text(encoding="utf-8").splitlines()
    for above, line, below in zip(lines, lines[1:], lines[2:], strict=False):
        if line.startswith("|") and not above.startswith("|"):
            assert re.fullmatch(r"\|[-:| ]+\|", below), f"a table without a head: {line}"


# -- words -------------------------------------------------------------------------------------

UNCLEAR = re.compile(r"\b(that of|as they are|as it is|of today|made for|stands? for|said|told)\b")
"""Words that make a reader look back for what they mean; name the thing."""
SENTENCES = [
    page
    for page in tracked("README.md", "docs/*.md")
    if page.name not in {"findings.md", "peers.md"}
]
MESSAGES = tracked("src/dpsweep/**/*.py", "src/dpsweep/**/*.j2")


def sentences(path: Path) -> list[str]:
    """Return the text of a page or a template, or the strings of a module without its docstrings."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return [re.sub(r"^```.*?^```|`[^`]*`", "", text, flags=re.DOTALL | re.MULTILINE)]
    if path.suffix == ".j2":
        return [re.sub(r"\{[{%#].*?[#}%]\}", "", text, flags=re.DOTALL)]
    nodes = list(ast.walk(ast.parse(text)))
    described = {node.value for node in nodes if isinstance(node, ast.Expr)}
    strings = (node for node in nodes if isinstance(node, ast.Constant) and node not in described)
    return [node.value for node in strings if isinstance(node.value, str)]


def test_pages_and_messages_name_the_thing() -> None:
    unclear = [
        f"{path.relative_to(ROOT)}: ...{text[max(0, found.start() - 40) : found.end() + 20]}..."
        for path in (*SENTENCES, *MESSAGES)
        for text in sentences(path)
        for found in UNCLEAR.finditer(text)
    ]
    assert len(MESSAGES) > 50
    assert not unclear, "\n".join(unclear)


# -- theory ------------------------------------------------------------------------------------


def test_every_committed_file_is_made_by_the_command() -> None:
    made = {name for figures in theory.FIGURES.values() for name in figures}
    assert {path.stem for path in theory.NUMBERS.glob("*.csv")} == made


# -- links -------------------------------------------------------------------------------------

PAGES = tracked("README.md", "CONTRIBUTING.md", "docs/*.md", "examples/*.ipynb")


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.M)


def headings(page: Path) -> set[str]:
    """Return the anchors of a page, as GitHub writes them."""
    found = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"no file: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in headings(target), f"no heading: {link}"
