"""What a figure asks of its selections, beyond that their cells exist."""

from typing import Any

import pytest
from pydantic import ValidationError
from tests.synthetic import make_study

from dpsweep.study import Study

SWEEP = {
    "epsilon": [1.0, 8.0], "epochs": [1, 2], "batch_size": [100, 200], "clipping_bound": [0.1, 1.0]
}  # fmt: skip


def study_with(family: str, **settings: Any) -> Study:
    target = {"family": family, "caption": "c", "section": "s"} | settings
    sweeps = {"s": SWEEP, "auto": SWEEP | {"clipping_bound": "automatic"}}
    return make_study(sweeps, figures={"f": target})


def mistakes(family: str, **settings: Any) -> list[str]:
    """What the study says of a figure, one mistake a line."""
    try:
        study_with(family, **settings)
    except ValidationError as error:
        (found,) = error.errors()
        return str(found["ctx"]["error"]).splitlines()
    return []


def panel(**axes: Any) -> dict[str, Any]:
    return {"title": "t"} | axes


@pytest.mark.parametrize(
    ("family", "complete", "axis"),
    [
        ("heatmap", {"epsilon": 1.0, "epochs": 1}, "epsilon"),
        ("gradient_norm_distribution", {"epsilon": 1.0, "epochs": 1, "clipping_bound": 0.1},
         "clipping_bound"),
        ("gradient_norm_histogram", {"epsilon": 1.0, "epochs": 1, "clipping_bound": 0.1},
         "epsilon"),
    ],
)  # fmt: skip
def test_a_panel_is_one_problem(family: str, complete: dict[str, Any], axis: str) -> None:
    assert mistakes(family, panels=[panel(**complete)]) == []
    incomplete = {name: value for name, value in complete.items() if name != axis}
    (mistake,) = mistakes(family, panels=[panel(**incomplete)])
    assert mistake.startswith(f"figures.py, line 6: f: panels[0].{axis}: found ")
    assert "allowed: one of them" in mistake


def test_the_axis_of_a_heatmap_may_have_all_its_values() -> None:
    settings: dict[str, Any] = {"x": "epsilon", "y": "clipping_bound"}
    assert mistakes("heatmap", **settings, panels=[panel(epochs=1)]) == []


def test_a_line_is_one_problem() -> None:
    line = {"label": "l", "epochs": 1}
    panels = [{"title": "t", "lines": [line]}]
    (mistake,) = mistakes("clipping_curve", panels=panels)
    assert mistake.startswith("figures.py, line 6: f: panels[0].lines[0].epsilon: found 1, 8")
    assert mistakes("method_comparison", panels=panels) == []


def test_the_baseline_of_a_per_class_figure_must_be_in_the_grid() -> None:
    settings: dict[str, Any] = {"panels": [panel(epsilon=1.0, epochs=1)]}
    assert mistakes("per_class", baseline=1.0, **settings) == []
    (mistake,) = mistakes("per_class", baseline=3.0, **settings)
    assert mistake == (
        "figures.py, line 6: f: baseline: found 3; allowed: a clipping bound of digits_small_film"
    )


def test_a_per_class_figure_asks_for_the_norms_of_its_bounds_and_baseline() -> None:
    settings: dict[str, Any] = {"panels": [panel(epsilon=1.0, epochs=1, clipping_bound=0.1)]}
    study = study_with("per_class", baseline=1.0, **settings)
    asked = {
        (cell.epsilon, cell.epochs, cell.clipping_bound)
        for selection in study.figures["f"].gradient_norms()
        for cell in study.cells(selection)
    }
    assert asked == {(1.0, 1, 0.1), (1.0, 1, 1.0)}
    without = study_with("per_class", baseline=1.0, rows=["accuracy_difference"], **settings)
    assert without.figures["f"].gradient_norms() == []


@pytest.mark.parametrize("family", ["clipping_curve", "gradient_norm_histogram", "per_class"])
def test_what_draws_c_needs_a_sweep_that_has_it(family: str) -> None:
    settings: dict[str, Any] = {"panels": [{"title": "t", "clipping_bound": "automatic"}]}
    if family == "clipping_curve":
        settings = {
            "panels": [{"title": "t", "lines": [{"label": "l", "clipping_bound": "automatic"}]}]
        }
    if family == "per_class":
        settings["baseline"] = 1.0
    (mistake,) = mistakes(family, **settings)
    assert ".clipping_bound: found automatic; allowed: numbers" in mistake


def test_a_heatmap_has_two_different_axes() -> None:
    settings: dict[str, Any] = {"x": "clipping_bound", "y": "clipping_bound"}
    with pytest.raises(ValueError, match="both clipping_bound"):
        study_with("heatmap", **settings, panels=[panel(epsilon=1.0, epochs=1)])


def test_an_entry_of_a_comparison_has_a_place_of_its_own() -> None:
    entry = {"epsilon": 1.0, "epochs": 1}
    table = {
        "family": "comparison", "caption": "c", "section": "s", "rows": ["dataset"],
        "columns": ["epsilon"], "entries": [entry, entry],
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"t: Digits, ε = 1 appears twice in the table"):
        make_study({"s": SWEEP}, tables={"t": table})
