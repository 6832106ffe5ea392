"""Sentences in the head of the report on costs of C and B that are larger than the scatter of seeds."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.synthetic import make_study, trial_rows

from dpsweep.report.summary import choice_sentences
from dpsweep.study import Cell

GRID: dict[str, Any] = {
    **{"epsilon": [1.0, 8.0], "epochs": [2], "batch_size": [64, 256], "seeds": 5},
    **{"clipping_bound": [0.1, 1.0, 42.0], "learning_rate": [0.01]},
}
SCATTER = 0.005


def said(lost: dict[float, float], scatter: float = SCATTER, **grid: Any) -> list[str]:
    """Return the sentences of a study in which some C or B lose accuracy."""
    study = make_study({"digits_film": GRID | grid})
    random = np.random.default_rng(1)

    def trial(cell: Cell, *_: Any) -> dict[str, Any]:
        middle = 0.5 - lost.get(float(cell.clipping_bound), 0) - lost.get(float(cell.batch_size), 0)
        return {"macro_accuracy": middle + scatter * random.standard_normal()}

    rows = [
        row | {"problem": cell.problem, "cell": cell.name}
        for cell in study.all_cells()
        for row in trial_rows(study, cell, trial)
    ]
    return choice_sentences(study, pd.DataFrame(rows))


def test_a_costly_value_is_named_with_its_accuracies() -> None:
    costly, alike, size, habit = said({42.0: 0.2, 256.0: 0.05})
    assert costly.startswith("C = 42 costs up to ")
    points = float(costly.split("up to ")[1].split()[0])
    assert points == pytest.approx(20, abs=1.5)
    reached, best = (float(costly.split(": ")[1].split()[place]) for place in (0, 3))
    assert best - reached == pytest.approx(points, abs=0.11)
    assert "in 2 of 2 settings" in costly
    assert alike.startswith("C = 0.1 and 1 do not differ from the best C in any of 2 settings")
    assert size.startswith("B = 256 costs up to")
    assert habit.startswith("The usual C = 1 with B = 256 costs up to")
    assert 3.5 < float(habit.split("up to ")[1].split()[0]) < 6.5


def test_without_costs_there_are_only_sentences_on_equal_values() -> None:
    found = said({})
    assert [each.split(" do not")[0] for each in found] == ["C = 0.1, 1 and 42", "B = 64 and 256"]
    for sentence in found:
        seen = float(sentence.split("difference of ")[1].split()[0])
        # A few standard errors of a difference of two means of four seeds.
        assert 2 < seen / (100 * SCATTER / 2**0.5) < 5


def test_a_difference_that_no_accuracies_have_is_not_promised() -> None:
    """As of 8 test examples, of which a seed gets one more or less right by chance."""
    assert [each.split(":")[0] for each in said({}, scatter=1.0)] == [
        "C = 0.1, 1 and 42 cannot be compared",
        "B = 64 and 256 cannot be compared",
    ]


@pytest.mark.parametrize("seeds", [1, 2])
def test_too_few_seeds_give_no_sentences(seeds: int) -> None:
    assert said({42.0: 0.4}, seeds=seeds) == []
