"""Figures of given numbers have the right marks, colours and labels."""

import itertools
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from tests.synthetic import Outcome, make_study, write_cells

from dpsweep.figures import families, style
from dpsweep.study import Cell, Study
from dpsweep.study.descriptions import how_chosen
from dpsweep.study.paths import Paths


def study_with(sweep: dict[str, Any], **target: Any) -> Study:
    return make_study({"s": sweep}, figures={"f": {"caption": "c", "section": "s"} | target})


def drawn(
    folder: Path, sweep: dict[str, Any], outcome: Outcome, **target: Any
) -> tuple[Figure, pd.DataFrame]:
    """Draw the figure of a study with one sweep of synthetic trials."""
    study, paths = study_with(sweep, **target), Paths(folder)
    write_cells(study, paths, outcome, steps_too=target["family"] == "norm_trace")
    numbers = study.figures["f"].compute(study, paths)
    with style.style():
        return study.figures["f"].plot(numbers), numbers


def placed(drawing: Figure) -> Figure:
    """Lay out a drawing, so that its texts have positions."""
    with style.style():
        drawing.draw_without_rendering()
    return drawing


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def labels(ticks: Any) -> list[str]:
    return [label.get_text() for label in ticks]


# -- squares -------------------------------------------------------------------------------

ALL = 1000  # the training set


def squares(sizes: list[int], bounds: list[float], **columns: Any) -> pd.DataFrame:
    """Return the numbers of a heatmap's panel: a row for every batch size and bound."""
    frame = pd.DataFrame(itertools.product(sizes, bounds), columns=["batch_size", "clipping_bound"])
    known = {"macro_accuracy": 0.5, "learning_rate": 0.01, "full_batch": frame["batch_size"] == ALL}
    return frame.assign(**known | columns)


def sides(axes: Axes) -> set[frozenset[tuple[float, float]]]:
    """Return the sides of the frames, each by its ends."""
    lines = [each for each in axes.collections if isinstance(each, LineCollection)]
    drawn = [
        {frozenset((float(x), float(y)) for x, y in side) for side in line.get_segments()}
        for line in lines
    ]
    assert all(each == drawn[0] for each in drawn)  # white below red
    return drawn[0] if drawn else set()


def around(left: int, top: int, right: int, bottom: int) -> set[frozenset[tuple[float, float]]]:
    """Return the sides of squares along the edge of a rectangle of squares."""
    columns = [(each, each + 1, y) for each in range(left, right) for y in (top, bottom)]
    rows = [(each, each + 1, x) for each in range(top, bottom) for x in (left, right)]
    found = {frozenset({(one, y), (other, y)}) for one, other, y in columns}
    return found | {frozenset({(x, one), (x, other)}) for one, other, x in rows}


def test_heatmap_axes_texts_and_frames() -> None:
    frame = squares([100, 200, ALL], [0.1, 1.0, 10.0, 42.0])
    lost = 0.1 * np.log10(frame["clipping_bound"]).abs() + 1e-4 * (frame["batch_size"] - 200).abs()
    frame["macro_accuracy"] = 0.9 - lost
    of_200 = frame["batch_size"].eq(200)
    frame.loc[of_200 & frame["clipping_bound"].eq(10), "macro_accuracy"] = math.nan
    frame["as_good"] = of_200 & frame["clipping_bound"].eq(1)
    axes, bar = placed(families.Heatmap.draw(frame)).axes
    assert labels(axes.get_xticklabels()) == ["0.1", "1", "10", "42"]
    assert labels(axes.get_yticklabels()) == ["Full", "200", "100"]
    assert axes.yaxis_inverted()  # Full is at the top
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Clipping bound C", "Batch size B")
    assert bar.get_ylabel() == "Macro accuracy"
    assert sides(axes) == around(1, 1, 2, 2)  # C = 1, B = 200
    inside = [text for text in axes.texts if text.get_text()[0] in ".–"]
    beside = set(axes.texts) - set(inside)
    assert {each.get_text() for each in beside} == {"framed: 1 of 12", "η = 0.01"}
    written = {tuple(map(math.floor, each.get_position())): each.get_text() for each in inside}
    assert len(inside) == len(written) == 12
    assert written[1, 1] == ".900"
    assert written[0, 2] == ".790"  # C = 0.1, B = 100: the lowest row
    assert written[2, 1] == "–"  # diverged


@pytest.mark.parametrize("alike", [(0.3, 0.1 + 0.2), (0.001234, 0.0012341)])
def test_values_that_print_alike_have_their_own_columns_and_lines(
    alike: tuple[float, float],
) -> None:
    frame = squares([200], [*alike, 10.0], macro_accuracy=[0.1, 0.2, 0.3])
    axes = placed(families.Heatmap.draw(frame)).axes[0]
    assert len(set(labels(axes.get_xticklabels()))) == 3
    assert [text for text in texts(axes) if text[0] == "."] == [".100", ".200", ".300"]
    points = itertools.product(alike, [0.01, 0.1])
    frame = pd.DataFrame(points, columns=["epsilon", "false_positive_rate"])
    drawing = families.AttackerCurves.draw(frame.assign(true_positive_rate=0.5))
    assert len({text.get_text() for text in drawing.legends[0].get_texts()}) == 2
    sizes = pd.DataFrame(itertools.product(alike, [2, 4]), columns=["epsilon", "epochs"])
    drawing = families.OptimalBatchSize.draw(sizes.assign(mean_batch_size=100.0, train_size=ALL))
    assert len({text.get_text() for text in drawing.axes[0].get_legend().get_texts()}) == 2


@pytest.mark.parametrize("scale", ["shared", "panel"])
def test_accuracies_in_per_cent_are_written_as_such(scale: Literal["shared", "panel"]) -> None:
    frame = squares([200], [0.1, 1.0, 10.0], macro_accuracy=[0.42, 71.26, 100.0])
    axes, bar = placed(families.Heatmap.draw(frame, colour_scale=scale)).axes
    assert [text for text in texts(axes) if text[0].isdigit()] == ["0.4", "71.3", "100"]
    assert "Macro accuracy (%)" in (bar.get_ylabel(), bar.get_xlabel())
    assert scale == "shared" or labels(bar.get_xticklabels()) == ["0.4", "100"]


def test_squares_that_seeds_cannot_distinguish_have_one_outline(tmp_path: Path) -> None:
    def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        lost = 0.2 * (cell.clipping_bound == 10.0) + 0.01 * (cell.clipping_bound == 0.1)
        lost += 0.2 * (cell.batch_size == 100)
        return {"macro_accuracy": 0.7 - lost + 0.01 * (seed - 2) - (rate == 0.02) * 0.1}

    grid = {"batch_size": [100, 200, 400], "clipping_bound": [0.1, 1.0, 10.0]}
    target: dict[str, Any] = {"family": "heatmap", "panels": [{"title": "t"}]}
    many = grid | {"learning_rate": [0.01, 0.02], "seeds": 3}
    drawing, numbers = drawn(tmp_path / "many", many, outcome, **target)
    assert sides(drawing.axes[0]) == around(0, 0, 2, 2)
    assert {"framed: 4 of 9", "η = 0.01"} <= set(texts(drawing.axes[0]))
    # The numbers distinguish the chosen square from those that are as good.
    chosen = numbers[numbers["best"]]
    assert (chosen["clipping_bound"].item(), chosen["batch_size"].item()) == (1.0, 200)
    assert numbers["as_good"].sum() == 4
    # With one seed there is no frame, as the caption notes.
    assert sides(drawn(tmp_path / "one", grid, outcome, **target)[0].axes[0]) == set()
    for seeds, said in {
        1: "There is no framed square: with one seed",
        3: "Each framed square is not significantly worse than the best of its panel",
    }.items():
        study = study_with(grid | {"seeds": seeds}, **target)
        assert said in " ".join(how_chosen(study, study.figures["f"]))


# -- lines ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "window"), [(40, None), (400, 9)])
def test_a_running_mean_of_steps_is_named_with_its_length(
    tmp_path: Path, steps: int, window: int | None
) -> None:
    drawing, numbers = drawn(
        tmp_path, {"batch_size": [2000 // steps]}, lambda *_: {"step_norms": np.arange(steps) ** 2},
        family="norm_trace", panels=[{"title": "2 epochs"}],
    )  # fmt: skip
    # The mean of the squares of w neighbours exceeds the square of their centre by (w^2 - 1) / 12.
    inner = numbers[numbers["step"].between(6, steps - 6)]
    above = inner["mean_gradient_norm_smooth"] - inner["mean_gradient_norm"]
    assert np.allclose(above, ((window or 1) ** 2 - 1) / 12, atol=1e-6)
    said = f"Thin: every step. Thick: running mean over up to {window} steps." if window else ""
    assert drawing.get_supxlabel() == said
    assert numbers["running_mean_over"].max() == (window or 1)
    assert len(drawing.axes[0].lines) == (2 if window else 1)


# -- norms, noise, theory ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lower", "upper", "said"),
    [
        (0.1, 1.0, "orders them"), (-0.9, -0.1, "orders them the wrong way"),
        (-0.5, 0.5, "not shown to order them"), (math.nan, math.nan, "too few problems to tell"),
    ],
)  # fmt: skip
def test_titles_of_predictions_state_whether_they_order_settings(
    lower: float, upper: float, said: str
) -> None:
    rules = ["C* (Theorem 4.1)", "C*, noise held fixed", "Scale-free C", "AUTO-S"]
    frame = pd.DataFrame({"rule": rules, "mean_lost": [0.03, 0.01, 0.04, 0.02]}).assign(
        epsilon=1.0, predicted=2.0, measured=[1.0, 2.0, 4.0, 1.0], settings=4,
        rank_correlation=0.3, rank_correlation_lower=lower, rank_correlation_upper=upper,
    )  # fmt: skip
    *panels, losses = families.PredictedClipping.draw(frame).axes
    assert [texts(axes)[0] for axes in panels] == [said] * 3
    assert labels(losses.get_yticklabels()) == [rules[place] for place in (1, 3, 0, 2)]
    assert texts(losses)[0] == "1.00 (4 settings)"
