"""Requirements of figures on their selections, beyond existing cells."""

from typing import Any

import pytest
from pydantic import ValidationError
from tests.synthetic import make_study

from dpsweep.study import Study

SWEEP = {
    "epsilon": [1.0, 8.0], "epochs": [1, 2], "batch_size": [100, 200], "clipping_bound": [0.1, 1.0]
}  # fmt: skip


ONE = {"epsilon": 1.0, "epochs": 1}
AUTOMATIC = {"title": "t", "clipping_bound": "automatic"}
LINE_OF_AUTOMATIC = {"title": "t", "lines": [{"label": "l", "clipping_bound": "automatic"}]}
LINES = {"title": "t", "lines": [{"label": "l", "epochs": 1}]}
BASELINE: dict[str, Any] = {"baseline": 1.0, "panels": [{"title": "t"} | ONE]}


def study_with(family: str, **settings: Any) -> Study:
    target = {"family": family, "caption": "c", "section": "s"} | settings
    sweeps = {"s": SWEEP, "auto": SWEEP | {"clipping_bound": "automatic"}}
    return make_study(sweeps, figures={"f": target})


def mistakes(family: str, **settings: Any) -> list[str]:
    """Return the study's error messages about a figure."""
    try:
        study_with(family, **settings)
    except ValidationError as error:
        (found,) = error.errors()
        return str(found["ctx"]["error"]).splitlines()
    return []


@pytest.mark.parametrize(
    ("family", "settings", "said"),
    [
        ("heatmap", {"x": "epsilon", "y": "clipping_bound", "panels": [{"title": "t", "epochs": 1}]}, ""),
        ("method_comparison", {"panels": [LINES]}, ""),
        ("clipping_curve", {"panels": [LINES]}, "f: epsilon: found 1, 8"),
        ("per_class", BASELINE, ""),
        ("per_class", BASELINE | {"baseline": 3.0},
         "f: baseline: found 3; allowed: a clipping bound of digits_small_film"),
        # Figures over C need a sweep with bounds.
        ("clipping_curve", {"panels": [LINE_OF_AUTOMATIC]},
         "clipping_bound: found automatic; allowed: numbers"),
        ("gradient_norm_histogram", {"panels": [AUTOMATIC]},
         "f: clipping_bound: found automatic; allowed: numbers"),
        ("per_class", {"baseline": 1.0, "panels": [AUTOMATIC]},
         "f: clipping_bound: found automatic; allowed: numbers"),
    ],
)  # fmt: skip
def test_a_selection_that_a_figure_cannot_draw_is_named(
    family: str, settings: dict[str, Any], said: str
) -> None:
    found = mistakes(family, **settings)
    assert len(found) == bool(said)
    assert all(each.startswith("figures.py, line 6: f: ") and said in each for each in found)
