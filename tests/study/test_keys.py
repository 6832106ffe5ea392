"""The pages of keys and figures and the schema are up to date, and the repository's studies are valid."""

from importlib.resources import files
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
from dpsweep.study.keys import NAME, as_lines, page, schema_text, study_keys, study_schema
from dpsweep.study.load import parse_yaml

ROOT = Path(__file__).parents[2]
EXAMPLE = Path(str(files("dpsweep.study").joinpath("every_key.yaml")))


@pytest.mark.parametrize(
    "file", tracked("config.yaml", "studies/*.yaml"), ids=lambda file: file.stem
)
def test_a_shipped_study_is_valid(file: Path) -> None:
    assert load_study(file).all_cells()


def test_generated_pages_are_up_to_date(paper: Study) -> None:
    """CONTRIBUTING.md has the commands that write them."""
    for file, text in (
        ("docs/keys.md", page()),
        ("docs/figures.md", catalogue(paper)),
        ("workflow/schemas/config.schema.yaml", schema_text()),
    ):
        assert (ROOT / file).read_text(encoding="utf-8") == text, file


def test_the_schema_is_valid_and_accepts_valid_studies() -> None:
    schema = study_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    for study in (described(edited({})), yaml.safe_load((ROOT / "config.yaml").read_text())):
        assert not list(jsonschema.Draft202012Validator(schema).iter_errors(study))


def test_every_key_of_the_models_is_listed_explained_and_shown() -> None:
    schema, keys = study_schema(), study_keys()
    names = {
        name
        for model in (schema, *schema["$defs"].values())
        for name in model.get("properties", {})
    }
    assert {key.path.rpartition(".")[2] for key in keys} - {"extends"} == names
    assert [key.path for key in keys if not key.meaning] == []
    paths = [key.path for key in keys]
    assert sorted(set(paths)) == sorted(paths)  # one row, also for several kinds of a section
    lines = list(as_lines(keys, 80))
    assert max(map(len, lines)) <= 80
    shown = " ".join(map(str.strip, lines))
    assert all(each.path in shown and each.meaning in shown for each in keys)


def test_examples_are_values_of_a_valid_study() -> None:
    load_study(EXAMPLE)
    content = parse_yaml(EXAMPLE.read_text(encoding="utf-8"))
    for key in study_keys():
        if key.example and key.path != "extends":
            assert parse_yaml(key.example) in values_at(content, key.path.split(".")), key


def values_at(content: Any, path: list[str]) -> list[Any]:
    """Return all values at a path, in which NAME is any key."""
    if isinstance(content, list) and path and isinstance(content[0], dict):
        return [value for each in content for value in values_at(each, path)]
    if not path or not isinstance(content, dict):
        return [] if path else [content]
    chosen = [value for key, value in content.items() if path[0] in (NAME, key)]
    return [value for each in chosen for value in values_at(each, path[1:])]
