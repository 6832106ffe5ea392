"""Mistakes in a study: the key, the value found and the allowed values; and data that are read twice."""

import copy
import math
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.study.small import DELETE, HERE, SMALL, complaints, dumped, edited, load_small, mistakes

from dpsweep.study import StudyError, load_study

MISTAKES: dict[str, Any] = yaml.safe_load((HERE / "mistakes.yaml").read_text(encoding="utf-8"))
del MISTAKES["shared"]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_message_names_key_value_and_what_is_allowed(tmp_path: Path, mistake: str) -> None:
    case = MISTAKES[mistake]
    found = "\n".join(complaints(tmp_path, case["edits"]))
    if "part" in case:
        assert case["part"] in found
    else:
        said = re.escape(case["said"].rstrip("\n"))
        assert re.fullmatch(said.replace(r"\.\.\.", ".*"), found), found


@pytest.mark.parametrize("section", ["datasets", "backbones", "methods", "sweeps"])
def test_names_unsafe_for_paths_or_shells_are_refused(tmp_path: Path, section: str) -> None:
    names = ["../x", "a b;rm", "", ".hidden", "-rf", "a/b", "a\n", "$(x)", "ä", "{x}", "a*"]
    copied = copy.deepcopy(next(iter(SMALL[section].values())))
    found = complaints(tmp_path, {section: SMALL[section] | dict.fromkeys(names, copied)})
    for name in names:
        shown = name.replace("\n", "\\n")
        said = f'{section}."{shown}": found "{shown}"; allowed: letters, digits'
        assert any(line.startswith(said) for line in found), name


def test_many_mistakes_fit_one_screen_and_are_counted(tmp_path: Path) -> None:
    sweeps = {f"sweep{i}": SMALL["sweeps"]["flat"] | {"dataset": "none"} for i in range(60)}
    *shown, rest = complaints(tmp_path, {"sweeps": sweeps, "figures": {}, "tables": {}})
    assert len(shown) == 20
    assert rest == f"... and {60 - len(shown)} more"


def key_paths(value: Any, path: str = "") -> list[str]:
    """Return the slash-separated paths of all keys and places in a value."""
    children: Any = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        children = enumerate(value)
    below = [each for key, child in children for each in key_paths(child, f"{path}/{key}")]
    return [path[1:], *below] if path else below


PLAIN = {key: value for key, value in SMALL.items() if key not in ("figures", "tables")}
JUNK = st.sampled_from(
    [
        *(DELETE, None, True, -1, 0, 1.5, math.nan, math.inf, "", "x", "../x", "full", "none", "~"),
        *("{", "1e400", [], [[]], [None], ["x", 1], {}, {"x": 1}, {8: 1}, {True: 1}, {None: 1}),
    ]
)


@settings(max_examples=25)
@given(st.dictionaries(st.sampled_from(key_paths(PLAIN)), JUNK, min_size=1, max_size=4))
def test_messages_about_random_mistakes_fit_one_screen(changes: dict[str, Any]) -> None:
    try:
        study = edited({"tables": DELETE, "figures": "none"} | changes)
    except (KeyError, IndexError, TypeError):
        return  # an earlier change removed a key of a later one
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study.yaml"
        path.write_text(dumped(study))
        try:
            load_study(path)
        except StudyError as error:
            assert mistakes(error)


# -- data that are read twice; mistakes.yaml has more of them ---------------------------------------

HUB = {"kind": "hub", "id": "owner/name"}
FOLDER = {"kind": "folder", "path": "images"}


def docstrings(*modules: str) -> dict[str, Any]:
    sizes = {"train_per_class": 10, "test_per_class": 5}
    return {"kind": "docstrings", "modules": list(modules), **sizes}


@pytest.mark.parametrize(
    ("private", "public", "same"),
    [
        ({"kind": "sklearn-digits"}, {"kind": "sklearn-digits", "seed": 1}, True),
        (HUB, HUB | {"train_splits": ["train", "validation"], "train_share": 0.1}, True),
        (HUB, HUB | {"id": "owner/other"}, False),
        (HUB | {"path": "copy"}, FOLDER | {"path": "./copy/"}, True),
        (FOLDER, FOLDER | {"train_folders": ["test"], "test_from_train": 0.2}, True),
        (FOLDER, FOLDER | {"path": "others"}, False),
        (HUB, {"kind": "glyphs"}, False),
        # A module contains its submodules.
        (docstrings("numpy", "scipy.stats"), docstrings("pandas", "scipy"), True),
        (docstrings("numpy", "scipy"), docstrings("pandas", "scipy.stats"), True),
        (docstrings("numpy", "scipy"), docstrings("numpydoc", "sci"), False),
    ],
)
def test_a_public_dataset_of_the_same_source_is_refused(
    tmp_path: Path, private: dict[str, Any], public: dict[str, Any], same: bool
) -> None:
    edits = {"datasets/digits/source": private, "datasets/letters/source": public}
    said = "found digits, whose source, like the source of letters, went into the weights"
    found: list[str] = []
    try:
        load_small(tmp_path, edits)
    except StudyError as error:  # texts for an image network cause other mistakes too
        found = [each.partition(":")[0] for each in mistakes(error) if said in each]
    private_sweeps = ["sweeps.flat.dataset", "sweeps.automatic.dataset"]
    assert found == private_sweeps * same
