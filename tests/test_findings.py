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
FILM: dict[str, Any] = read_json(MODULE["FILM_NUMBERS"])


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


def test_another_accuracy_of_film_is_another_page() -> None:
    changed = copy.deepcopy(FILM)
    changed["rows"][0]["centre"] -= 0.01
    assert MODULE["page"](NUMBERS, changed) != MODULE["page"](NUMBERS, FILM)
