"""The numbers and pictures of docs/findings.md, and the README's claims, match the committed trials."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from benchmarks.findings import film
from benchmarks.findings.numbers import NUMBERS as FILE
from benchmarks.findings.numbers import TRIALS, collect, digest
from benchmarks.tables.findings import film_claims

from dpsweep.base.files import read_json
from dpsweep.study import load_study
from tests.tracked import tracked

ROOT = Path(__file__).parents[1]
NUMBERS: dict[str, Any] = read_json(FILE)


@pytest.mark.slow
def test_the_numbers_match_the_trials() -> None:
    study = load_study(ROOT / "studies" / "frozen-features.yaml")
    found = collect(study, pd.read_parquet(TRIALS))
    assert found == {name: NUMBERS[name] for name in found}, (
        "run: python -m benchmarks.findings --numbers"
    )


def test_the_pictures_match_the_numbers() -> None:
    found = {file.stem: digest(file) for file in tracked("docs/images/findings/*.png")}
    assert found == NUMBERS["pictures"]


def test_the_numbers_of_film_match_its_trials() -> None:
    study = load_study(film.STUDY)
    found = film.collect_film(study, film.kept_trials(study))
    pictures = {file.stem: digest(file) for file in tracked("docs/images/film/*.png")}
    assert found | {"pictures": pictures} == read_json(film.FILM_NUMBERS), (
        "run: python -m benchmarks.findings.film --numbers"
    )


def test_the_findings_of_the_readme_agree_with_the_numbers_of_film() -> None:
    said = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for claim in film_claims(read_json(film.FILM_NUMBERS)):
        assert f"- {claim}" in said, f"the README should say: {claim}"
