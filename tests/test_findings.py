"""docs/findings.md and its pictures belong to the committed numbers."""

import copy
import runpy
from pathlib import Path
from typing import Any

import pytest

from dpsweep.files import read_json

ROOT = Path(__file__).parents[1]
MODULE: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks" / "findings.py"))
NUMBERS: dict[str, Any] = read_json(MODULE["NUMBERS"])
FILM: dict[str, Any] | None = MODULE["film_numbers"]()


def test_the_page_is_that_of_the_numbers() -> None:
    written = MODULE["PAGE"].read_text(encoding="utf-8")
    assert written == MODULE["page"](NUMBERS, FILM), "run: python benchmarks/findings.py --page"


def test_the_pictures_are_those_of_the_numbers() -> None:
    found = {file.stem: MODULE["digest"](file) for file in MODULE["IMAGES"].glob("*.png")}
    assert found == NUMBERS["pictures"]


@pytest.mark.parametrize("section", ["by_bound", "by_batch_size"])
def test_another_accuracy_is_another_page(section: str) -> None:
    changed = copy.deepcopy(NUMBERS)
    changed[section][0]["accuracy"][0] -= 0.01
    assert MODULE["page"](changed, FILM) != MODULE["page"](NUMBERS, FILM)


def test_cells_with_film_are_on_the_page() -> None:
    row = {"epsilon": 8.0, "batch_size": 128, "clipping_bound": 1.0, "centre": 0.4567}
    film = {"cells": 12, "done": 1, "rows": [row]}
    written = MODULE["page"](NUMBERS, film)
    assert "1 of its 12 cells have been trained" in written
    assert "| ε = 8, B = 128 | 45.7 |" in written
    assert "It has not been run yet." in MODULE["page"](NUMBERS, None)
