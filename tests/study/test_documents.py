"""The schema and the page of figures are up to date, and the studies of the repository are valid."""

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
