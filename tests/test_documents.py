"""Pages match the committed results and the code, their links lead somewhere, and examples are right."""

import doctest
import importlib
import pydoc
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from benchmarks import surprises, tables
from benchmarks.evidence import theory
from benchmarks.findings import film, numbers
from benchmarks.tables.findings import film_claims

from dpsweep.base.files import read_json
from dpsweep.study import load_study
from tests.tracked import ROOT, prose, tracked

PAGES = tracked("README.md", "CONTRIBUTING.md", "docs/*.md", "examples/*.ipynb")
SOURCE = ROOT / "src" / "dpsweep"


# -- committed results ---------------------------------------------------------------------------


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


def test_every_committed_file_of_theory_is_made_by_the_command() -> None:
    made = {name for figures in theory.FIGURES.values() for name in figures}
    assert {path.stem for path in theory.NUMBERS.glob("*.csv")} == made


def digests(pattern: str) -> dict[str, Any]:
    return {file.stem: numbers.digest(file) for file in tracked(pattern)}


def test_the_pictures_of_findings_match_their_numbers() -> None:
    assert digests("docs/images/findings/*.png") == read_json(numbers.NUMBERS)["pictures"]


@pytest.mark.slow
def test_the_numbers_of_findings_match_the_trials() -> None:
    study = load_study(ROOT / "studies" / "frozen-features.yaml")
    found = numbers.collect(study, pd.read_parquet(numbers.TRIALS))
    kept = read_json(numbers.NUMBERS)
    assert found == {name: kept[name] for name in found}, "python -m benchmarks.findings --numbers"


def test_numbers_and_claims_of_film_match_its_trials() -> None:
    study = load_study(film.STUDY)
    found = film.collect_film(study, film.kept_trials(study))
    kept = read_json(film.FILM_NUMBERS)
    assert found | {"pictures": digests("docs/images/film/*.png")} == kept, (
        "python -m benchmarks.findings.film --numbers"
    )
    said = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for claim in film_claims(kept):
        assert f"- {claim}" in said, f"the README should say: {claim}"


# -- studies of a page ---------------------------------------------------------------------------

OWN_DATA = (ROOT / "docs" / "your-own-data.md").read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"^```yaml\n# (studies/\S+)\n(.*?)^```", OWN_DATA, re.DOTALL | re.M))


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_page_lists_the_figures_of_an_example(name: str, tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    for file in ("config.yaml", "studies/paper-accuracies.csv"):
        shutil.copy(ROOT / file, tmp_path / file)
    for each, block in EXAMPLES.items():
        (tmp_path / each).write_text(block)
    assert len(EXAMPLES[name].splitlines()) < 20
    study = load_study(tmp_path / name)
    page = OWN_DATA[OWN_DATA.index(f"# {name}") :]
    figures, tables, report, named = re.search(  # type: ignore[union-attr]
        r"\*Result:\* (\d+) figures and (\d+) tables in `(\S+)`, among them (.*?)\.\n", page
    ).groups()
    assert (int(figures), int(tables)) == (len(study.figures), len(study.tables))
    assert report == f"{study.results}/report.html"
    assert set(re.findall("`(.*?)`", named)) <= set(study.figures)


# -- code ----------------------------------------------------------------------------------------


def test_every_package_has_its_tests_in_the_map() -> None:
    """Check the map of CONTRIBUTING.md, which `make test-for` reads."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(\w+)` \| ((?:`tests/[^`]*` ?)+)\|$", page, re.MULTILINE))
    packages = {file.parent.name for file in SOURCE.glob("*/__init__.py")}
    assert rows.keys() == packages
    named = set(re.findall(r"`(.*?)`", " ".join(rows.values())))
    assert all((ROOT / test).exists() for test in named)
    assert {f"tests/{each}" for each in packages if (ROOT / "tests" / each).is_dir()} <= named


def test_walks_of_the_design_name_existing_code() -> None:
    walks = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").split("## Three walks")[1]
    named = re.findall(r"`([a-z_]+(?:\.\w+)+)`", walks.split("\n## ")[0])
    assert len(named) > 25
    assert [each for each in named if pydoc.locate(f"dpsweep.{each}") is None] == []


@pytest.mark.parametrize(
    "module",
    [
        ".".join(file.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
        for file in sorted(SOURCE.rglob("*.py"))
        if ">>> " in file.read_text(encoding="utf-8")
    ],
)
def test_examples_of_docstrings_are_right(module: str) -> None:
    found = doctest.testmod(importlib.import_module(module))
    assert found.attempted > 0 == found.failed


# -- Markdown ------------------------------------------------------------------------------------


def headings(page: Path) -> set[str]:
    """Return the anchors of a page, as GitHub writes them."""
    found = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_headings_and_tables_have_a_head(page: Path) -> None:
    """A blank line within a table turns the rest of it into plain text."""
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"no file: {link}"
        if anchor and target.suffix == ".md":
            assert anchor in headings(target), f"no heading: {link}"
    lines = page.read_text(encoding="utf-8").splitlines()
    for above, line, below in zip(lines, lines[1:], lines[2:], strict=False):
        if page.suffix == ".md" and line.startswith("|") and not above.startswith("|"):
            assert re.fullmatch(r"\|[-:| ]+\|", below), f"a table without a head: {line}"
