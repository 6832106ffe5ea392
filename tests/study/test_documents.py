"""The schema and the page of figures are up to date, and the studies of the repository are valid."""

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from benchmarks.catalogue import catalogue
from tests.described import described
from tests.study.small import DELETE, Edits, edited
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
    assert mistakes(edited(edits)) != []


def keys_of(value: Any) -> set[str]:
    """Return the keys of all mappings in a value."""
    if isinstance(value, dict):
        return set(value).union(*map(keys_of, value.values()))
    return set().union(*map(keys_of, value)) if isinstance(value, list) else set()


def test_keys_in_the_answers_of_the_faq_exist() -> None:
    page = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
    written = [yaml.safe_load(each) for each in re.findall(r"`([a-z_]+: [^`]+)`", page)]
    allowed = keys_of(study_schema())
    assert len(written) > 8
    assert keys_of(written) <= allowed
    for key, value in ((key, value) for each in written for key, value in each.items()):
        if isinstance(value, dict) and key in study_schema()["properties"]:
            assert not [
                line for line in mistakes(described(edited({key: value}))) if "Additional" in line
            ]


# -- the page of figures ----------------------------------------------------------------------


def test_the_page_is_current(paper: Study) -> None:
    assert (ROOT / "docs" / "figures.md").read_text(encoding="utf-8") == catalogue(paper), (
        "run: python -m benchmarks.catalogue > docs/figures.md"
    )


def test_every_target_has_its_command_and_one_sentence(paper: Study) -> None:
    rows = re.findall(
        r"^\| \*\*(\S+)\*\*<br>`snakemake (\S+)` \| (.+) \| ([\d,]+) \|$", catalogue(paper), re.M
    )
    assert [name for name, *_ in rows if name in paper.figures] == list(paper.figures)
    assert {name for name, *_ in rows} == {*paper.figures, *paper.tables}
    for name, file, sentence, _ in rows:
        kind, suffix = ("figures", "pdf") if name in paper.figures else ("tables", "md")
        assert file == f"results/{kind}/{name}.{suffix}"
        assert len(sentence) > 20
        assert sentence.endswith(".")
        assert "|" not in sentence
