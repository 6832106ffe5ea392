"""docs/findings.md and its pictures belong to the committed numbers."""

import copy
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from benchmarks import findings

from dpsweep.base.files import read_json
from dpsweep.study import load_study

ROOT = Path(__file__).parents[1]
NUMBERS: dict[str, Any] = read_json(findings.NUMBERS)
FILM: dict[str, Any] | None = findings.film_numbers()


def test_the_numbers_are_those_of_the_trials() -> None:
    study = load_study(ROOT / "studies" / "frozen-features.yaml")
    found = findings.collect(study, pd.read_parquet(findings.TRIALS))
    assert found == {name: NUMBERS[name] for name in found}, (
        "run: python -m benchmarks.findings --page"
    )


def test_the_page_is_that_of_the_numbers() -> None:
    written = findings.PAGE.read_text(encoding="utf-8")
    assert written == findings.page(NUMBERS, FILM), "run: python -m benchmarks.findings --page"


def test_the_pictures_are_those_of_the_numbers() -> None:
    found = {file.stem: findings.digest(file) for file in findings.IMAGES.glob("*.png")}
    assert found == NUMBERS["pictures"]


def test_the_readme_says_what_the_numbers_say() -> None:
    losses = [
        [max(row["accuracy"]) - each for each in row["accuracy"]] for row in NUMBERS["by_bound"]
    ]
    smallest, largest = (100 * max(row[place] for row in losses) for place in (0, -1))
    said = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"Over {len(losses)} settings the smallest C costs at most {smallest:.1f} points" in said
    assert f"a C above the norms up to {largest:.1f}." in said
    about_bounds = [row for row in NUMBERS["rules"] if row["rule"].endswith("larger_bound")]
    assert [row["verdict"] for row in about_bounds] == 3 * ["no difference here"]
    about_sizes = [row for row in NUMBERS["rules"] if row["rule"].endswith("smaller_batch")]
    assert [row["verdict"] for row in about_sizes] == 2 * ["not resolved"]


@pytest.mark.parametrize("section", ["by_bound", "by_batch_size"])
def test_another_accuracy_is_another_page(section: str) -> None:
    changed = copy.deepcopy(NUMBERS)
    changed[section][0]["accuracy"][0] -= 0.01
    assert findings.page(changed, FILM) != findings.page(NUMBERS, FILM)


def test_cells_with_film_are_on_the_page() -> None:
    row = {"epsilon": 8.0, "batch_size": 128, "clipping_bound": 1.0, "centre": 0.4567}
    row |= {"minimum": 0.4467, "maximum": 0.4667}
    other = row | {"batch_size": 1024, "centre": 0.5, "minimum": 0.5, "maximum": 0.5}
    film = {"cells": 12, "done": 2, "test_examples": 2500, "rows": [row, other]}
    film["rates"] = {"cells": 2, "at_an_end": 1}
    written = findings.page(NUMBERS, film)
    assert "2 of its 12 cells have been trained" in written
    assert "| ε = 8, B = 128 | 45.7 |" in written
    assert "differ by 1.0 points in the mean and by 2.0 at most" in written
    assert "2,500 test examples" in written
    assert "at an end of its grid in 1 of 2 cells." in written
    assert "a standard error of up to 1.0 points" in written
    costs = "4.3 at B = 128, 0.0 at B = 1,024."
    assert f"Against the best B, C tuned with it, it is lower by {costs}" in written
    assert "It has not been run yet." in findings.page(NUMBERS, None)
