"""Sources of examples: a public dataset must not contain private examples, under any name.

Tests of data that is read twice are in tests/study/mistakes.yaml.
"""

from pathlib import Path
from typing import Any

import pytest
from tests.study.small import complaints, load_small

HUB = {"kind": "hub", "id": "owner/name"}
FOLDER = {"kind": "folder", "path": "images"}


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
    ],
)
def test_a_public_dataset_of_the_same_source_is_refused(
    tmp_path: Path, private: dict[str, Any], public: dict[str, Any], same: bool
) -> None:
    edits = {"datasets/digits/source": private, "datasets/letters/source": public}
    if not same:
        load_small(tmp_path, edits)
        return
    found = complaints(tmp_path, edits)
    assert len(found) == 2  # both sweeps are private
    assert found[0].startswith(
        "sweeps.flat.dataset: found digits, whose source, like the source of letters, went into the weights"
    )


@pytest.mark.parametrize("named", ["letters", "copy"])
def test_private_data_are_refused_for_pretraining(tmp_path: Path, named: str) -> None:
    """Their weights would become frozen parameters of models for other data too."""
    letters = load_small(tmp_path, {}).datasets["letters"].model_dump(mode="json")
    copied = {"datasets/copy": letters | {"private": True}}
    edits = {"datasets/letters/private": True} if named == "letters" else copied
    (found,) = complaints(tmp_path, edits)
    which = "is" if named == "letters" else "may share examples with copy,"
    assert found.startswith(
        f"backbones.pretrained.weights.dataset: found letters, which {which} marked private; allowed: public"
    )


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (["numpy", "scipy.stats"], ["pandas", "scipy"], True),
        (["numpy", "scipy"], ["pandas", "scipy.stats"], True),
        (["numpy", "scipy"], ["numpydoc", "sci"], False),
    ],
)
def test_a_module_contains_its_submodules(
    tmp_path: Path, one: list[str], other: list[str], same: bool
) -> None:
    kind = {"kind": "docstrings", "train_per_class": 10, "test_per_class": 5}
    edits = {
        "datasets/digits/source": kind | {"modules": one},
        "datasets/letters/source": kind | {"modules": other},
    }
    # Texts for an image network cause other mistakes too.
    found = [each for each in complaints(tmp_path, edits) if "went into" in each]
    assert bool(found) == same
