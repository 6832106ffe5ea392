"""Private examples must not be in a public dataset, under any name."""

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
        (HUB, HUB | {"train_share": 0.1}, True),
        (HUB, HUB | {"id": "owner/other"}, False),
        (HUB | {"path": "copy"}, FOLDER | {"path": "./copy/"}, True),
        (FOLDER, FOLDER | {"train_folders": ["more"]}, True),
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
        "sweeps.flat.dataset: found digits, whose source, as that of letters, went into the weights"
    )


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (["numpy", "scipy.stats"], ["pandas", "scipy"], True),
        (["numpy", "scipy"], ["pandas", "scipy.stats"], True),
        (["numpy", "scipy"], ["numpydoc", "sci"], False),
    ],
)
def test_modules_hold_what_lies_inside_them(
    tmp_path: Path, one: list[str], other: list[str], same: bool
) -> None:
    sizes = {"train_per_class": 10, "test_per_class": 5}

    def docstrings(modules: list[str]) -> dict[str, Any]:
        return {"kind": "docstrings", "modules": modules, **sizes}

    edits = {
        "datasets/digits/source": docstrings(one),
        "datasets/letters/source": docstrings(other),
    }
    # Other things are wrong with texts for an image network.
    found = [each for each in complaints(tmp_path, edits) if "went into" in each]
    assert bool(found) == same
