"""The JSON schema in the repository is that of the code, and refuses what the code refuses."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from tests.study.small import DELETE, Edits, edited

from dpsweep.study.schema import schema_text, study_schema

ROOT = Path(__file__).parents[2]


def test_the_file_is_up_to_date() -> None:
    path = ROOT / "workflow" / "schemas" / "config.schema.yaml"
    assert path.read_text(encoding="utf-8") == schema_text(), (
        "run: python -m dpsweep.study.schema > workflow/schemas/config.schema.yaml"
    )


def problems(content: Any) -> list[str]:
    validator = jsonschema.Draft202012Validator(study_schema())
    return [error.message for error in validator.iter_errors(content)]


def test_the_schema_is_valid_and_accepts_valid_studies() -> None:
    jsonschema.Draft202012Validator.check_schema(study_schema())
    assert problems(edited({})) == []
    assert problems(yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "edits",
    [
        {"swepes": {}},
        {"sweeps": DELETE},
        {"sweeps/flat/epsilom": [1]},
        {"sweeps/flat/epsilon": [-1]},
        {"sweeps/flat/batch_size": ["ful"]},
        {"sweeps/flat/clipping_bound": "autmatic"},
        {"sweeps/../x": {}},
        {"methods/film/kind": "fim"},
        {"figures/map/family": "map"},
        {"figures/a b;rm": {}},
        {"privacy": {"delta": 2.0}},
    ],
)
def test_the_schema_refuses_mistakes(edits: Edits) -> None:
    if "sweeps/../x" in edits:
        edits = {"sweeps": {"../x": edited({})["sweeps"]["flat"]}}
    assert problems(edited(edits)) != []
