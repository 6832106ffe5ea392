"""The schema and the page of figures are up to date, and the studies of the repository are valid."""

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from benchmarks.catalogue import catalogue
from tests.described import described
from tests.study.small import edited
from tests.tracked import tracked

from dpsweep.study import Study, load_study
from dpsweep.study.keys import schema_text, study_schema

ROOT = Path(__file__).parents[2]
STUDIES = tracked("config.yaml", "studies/*.yaml")


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.stem)
def test_a_shipped_study_is_valid(file: Path) -> None:
    assert load_study(file).all_cells()


# -- the schema -------------------------------------------------------------------------------


def test_the_schema_is_up_to_date() -> None:
    path = ROOT / "workflow" / "schemas" / "config.schema.yaml"
    assert path.read_text(encoding="utf-8") == schema_text(), (
        "run: python -m dpsweep.study.keys --schema > workflow/schemas/config.schema.yaml"
    )


def mistakes(content: Any) -> list[str]:
    validator = jsonschema.Draft202012Validator(study_schema())
    return [error.message for error in validator.iter_errors(content)]


def test_the_schema_is_valid_and_accepts_valid_studies() -> None:
    jsonschema.Draft202012Validator.check_schema(study_schema())
    assert mistakes(described(edited({}))) == []
    assert mistakes(yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))) == []


# -- the page of figures ----------------------------------------------------------------------


def test_the_page_is_current(paper: Study) -> None:
    assert (ROOT / "docs" / "figures.md").read_text(encoding="utf-8") == catalogue(paper), (
        "run: python -m benchmarks.catalogue > docs/figures.md"
    )


def test_every_target_is_listed_with_its_cells_and_a_sentence(paper: Study) -> None:
    rows = re.findall(r"^\| ([^|]+) \| (`[^|]+) \| ([^|]{20,}\.) \|$", catalogue(paper), re.M)
    cells = dict(re.findall(r"`(\S+)` \(([\d,]+)\)", " ".join(names for _, names, _ in rows)))
    assert cells.keys() == {*paper.figures, *paper.tables}
    assert cells["fig1_accuracy_heatmaps"] == "210"
    sections = [section for section, *_ in rows]
    assert set(sections) == {
        each.section for each in (*paper.figures.values(), *paper.tables.values())
    }
