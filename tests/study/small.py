"""A small valid study for tests to edit, and checks of every message about it."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.described import described

from dpsweep.study import Study, StudyError, load_study

HERE = Path(__file__).parent
DELETE = "DELETE"  # the value of an edit that removes its key
SMALL: dict[str, Any] = yaml.safe_load((HERE / "small.yaml").read_text(encoding="utf-8"))

Edits = dict[str, Any]


def edited(edits: Edits) -> dict[str, Any]:
    """Return the small study with values replaced at slash-separated key paths."""
    study = copy.deepcopy(SMALL)
    for path, value in edits.items():
        *above, last = (int(key) if key.isdecimal() else key for key in path.split("/"))
        place: Any = study
        for key in above:
            place = place[key]
        if value == DELETE:
            del place[last]
        else:
            place[last] = copy.deepcopy(value)
    return study


def dumped(study: Any) -> str:
    """Return YAML, written by libyaml if PyYAML has it."""
    return str(
        yaml.dump(study, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), sort_keys=False)
    )


def load_small(folder: Path, edits: Edits) -> Study:
    """Load the small study with edits, from a file."""
    path = folder / "study.yaml"
    path.write_text(dumped(described(edited(edits), folder)))
    return load_study(path)


def complaints(folder: Path, edits: Edits) -> list[str]:
    """Return the mistakes in the error about an edit of the small study."""
    with pytest.raises(StudyError) as refused:
        load_small(folder, edits)
    return mistakes(refused.value)


def mistakes(error: StudyError) -> list[str]:
    """Check the form of a message, and return its mistakes."""
    title, *lines = str(error).splitlines()
    assert title.endswith("is not a valid study:")
    assert len(lines) <= 21
    for noise in ("Traceback", "pydantic", "http", "function-after", "literal["):
        assert noise not in str(error)
    # The chain of exceptions shows no internals of the validation either.
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None
    return [line.strip() for line in lines]
