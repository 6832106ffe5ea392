"""The page and the command of keys: every key of the models, with a valid example, and up to date."""

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from dpsweep.base.errors import DpsweepError
from dpsweep.study import load_study
from dpsweep.study.keys import NAME, as_lines, page, study_keys, study_schema
from dpsweep.study.load import StudyLoader

PAGE = Path(__file__).parents[2] / "docs" / "keys.md"
EXAMPLE = Path(str(files("dpsweep.study").joinpath("every_key.yaml")))


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run: python -m dpsweep.study.keys > docs/keys.md"
    )


def test_every_key_of_the_models_is_listed_and_explained() -> None:
    schema = study_schema()
    models = [schema, *schema["$defs"].values()]
    names = {name for model in models for name in model.get("properties", {})}
    keys = study_keys()
    assert {key.path.rpartition(".")[2] for key in keys} - {"extends"} == names
    assert [key.path for key in keys if not key.meaning] == []
    paths = [key.path for key in keys]
    assert sorted(set(paths)) == sorted(paths)  # one row, also for several kinds of a section


def test_examples_are_values_of_a_valid_study() -> None:
    load_study(EXAMPLE)
    content = yaml.load(EXAMPLE.read_text(encoding="utf-8"), Loader=StudyLoader)  # noqa: S506
    for key in study_keys():
        if key.example and key.path != "extends":
            value = yaml.load(key.example, Loader=StudyLoader)  # noqa: S506
            assert value in values_at(content, key.path.split(".")), key


def values_at(content: Any, path: list[str]) -> list[Any]:
    """Return all values at a path, in which NAME is any key."""
    if isinstance(content, list) and path and isinstance(content[0], dict):
        return [value for each in content for value in values_at(each, path)]
    if not path:
        return [content]
    if not isinstance(content, dict):
        return []
    chosen = (
        content.values() if path[0] == NAME else [content[path[0]]] if path[0] in content else []
    )
    return [value for each in chosen for value in values_at(each, path[1:])]


def test_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(
        DpsweepError, match=re.escape('SECTION: found "relaese"; did you mean release?')
    ):
        study_keys("relaese")


def test_a_terminal_shows_every_meaning_in_lines_that_fit() -> None:
    lines = list(as_lines(study_keys(), 80))
    assert max(map(len, lines)) <= 80
    shown = " ".join(map(str.strip, lines))
    assert all(each.path in shown and each.meaning in shown for each in study_keys())
