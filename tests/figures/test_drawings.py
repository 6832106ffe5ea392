"""What is drawn from the numbers: marks, colours and labels in the right places."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from tests.synthetic import make_study, write_cells

from dpsweep.figures import style
from dpsweep.figures.draw import FAMILIES
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths


def plotted(study: Study, paths: Paths) -> tuple[Figure, pd.DataFrame]:
    figure = study.figures["f"]
    compute, plot = FAMILIES[figure.family]
    numbers = compute(study, paths, figure)
    with style.style():
        drawing = plot(figure, numbers)
        drawing.draw_without_rendering()
    return drawing, numbers


def study_with(sweep: dict[str, Any], **target: Any) -> Study:
    return make_study({"s": sweep}, figures={"f": {"caption": "c", "section": "s"} | target})


def square(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
    size = 1000 if cell.batch_size == "full" else cell.batch_size
    if (size, cell.clipping_bound) == (200, 10.0):
        return {"macro_accuracy": math.nan, "diverged": True}
    bound = float(cell.clipping_bound)
    return {"macro_accuracy": 0.9 - 0.1 * abs(math.log10(bound)) - 0.0001 * abs(size - 200)}


@pytest.fixture
def heatmap(tmp_path: Path) -> Figure:
    grid = {"batch_size": [100, 200, "full"], "clipping_bound": [0.1, 1.0, 10.0, 42.0]}
    study = study_with(grid, family="heatmap", panels=[{"title": "Digits, ε = 8", "sweep": "s"}])
    write_cells(study, Paths(tmp_path), square)
    return plotted(study, Paths(tmp_path))[0]


def test_heatmap_axes_are_the_grid_smallest_below_left(heatmap: Figure) -> None:
    axes = heatmap.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.1", "1", "10", "42"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["100", "200", "Full"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Clipping bound C", "Batch size B")
    assert heatmap.axes[1].get_ylabel() == "Macro accuracy"  # the colour bar


def test_heatmap_frames_the_best_square(heatmap: Figure) -> None:
    frames = [patch for patch in heatmap.axes[0].patches if isinstance(patch, Rectangle)]
    assert {frame.get_xy() for frame in frames} == {(1, 1)}  # C = 1, B = 200


def test_heatmap_writes_every_value(heatmap: Figure) -> None:
    written = {
        (math.floor(text.get_position()[0]), math.floor(text.get_position()[1])): text.get_text()
        for text in heatmap.axes[0].texts
    }
    assert len(written) == 12
    assert written[1, 1] == ".900"
    assert written[0, 0] == ".790"
    assert written[2, 1] == "–"  # diverged


def test_a_crowded_heatmap_leaves_the_values_to_the_colours(tmp_path: Path) -> None:
    bounds = [float(bound) for bound in range(1, 41)]
    study = study_with(
        {"clipping_bound": bounds}, family="heatmap", panels=[{"title": "t", "sweep": "s"}]
    )
    write_cells(study, Paths(tmp_path), lambda cell, rate, seed: {"macro_accuracy": 0.5})
    drawing, _ = plotted(study, Paths(tmp_path))
    assert not drawing.axes[0].texts
    assert drawing.get_figwidth() <= style.TEXT_WIDTH + 1e-9


@pytest.mark.parametrize("scale", ["shared", "panel"])
def test_the_colour_scale_is_shared_or_of_each_panel(tmp_path: Path, scale: str) -> None:
    study = study_with(
        {"epsilon": [1.0, 8.0], "clipping_bound": [0.1, 1.0]},
        family="heatmap",
        colour_scale=scale,
        panels=[{"title": f"{e:g}", "sweep": "s", "epsilon": e} for e in (1.0, 8.0)],
    )
    write_cells(
        study,
        Paths(tmp_path),
        lambda cell, rate, seed: {"macro_accuracy": 0.1 * cell.epsilon * cell.clipping_bound},
    )
    drawing, _ = plotted(study, Paths(tmp_path))
    limits = [axes.collections[0].get_clim() for axes in drawing.axes if axes.get_title()]
    shared, one, eight = (0.01, 0.8), (0.01, 0.1), (0.08, 0.8)
    expected = [shared, shared] if scale == "shared" else [one, eight]
    assert [pytest.approx(pair) for pair in expected] == limits
    bars = [axes for axes in drawing.axes if not axes.get_title()]
    assert len(bars) == (1 if scale == "shared" else 2)


def lines_of(axes: Axes) -> dict[str, str]:
    return {
        str(line.get_label()): to_hex(line.get_color())
        for line in axes.lines
        if not str(line.get_label()).startswith("_")
    }


def curve(tmp_path: Path, difficulties: list[str | None]) -> Axes:
    budgets = [1.0, 2.0, 4.0, 8.0][: len(difficulties)]
    lines = [
        {"label": f"{budget:g}", "sweep": "s", "epsilon": budget, "difficulty": difficulty}
        for budget, difficulty in zip(budgets, difficulties, strict=True)
    ]
    study = study_with(
        {"epsilon": budgets, "clipping_bound": [0.1, 1.0, 10.0], "seeds": 2},
        family="clipping_curve",
        panels=[{"title": "Digits", "lines": lines}],
    )
    write_cells(
        study,
        Paths(tmp_path),
        lambda cell, rate, seed: {
            "macro_accuracy": 0.5 - 0.1 * (cell.clipping_bound != cell.epsilon) + 0.01 * seed
        },
    )
    drawing, _ = plotted(study, Paths(tmp_path))
    return drawing.axes[0]


def test_easy_is_blue_and_hard_is_orange(tmp_path: Path) -> None:
    axes = curve(tmp_path, ["hard", "easy"])
    assert lines_of(axes) == {"1": style.HARD.lower(), "2": style.EASY.lower()}


def test_many_lines_take_an_ordered_palette_and_a_legend_beside_the_axes(tmp_path: Path) -> None:
    axes = curve(tmp_path, [None] * 4)
    assert list(lines_of(axes).values()) == style.ordered_colours(4)
    legend = axes.get_legend()
    assert legend is not None
    assert legend.get_window_extent().x0 >= axes.get_window_extent().x1 - 1


def test_the_best_point_is_ringed_and_the_axis_is_logarithmic(tmp_path: Path) -> None:
    axes = curve(tmp_path, ["easy"])
    (ring,) = [line for line in axes.lines if line.get_markerfacecolor() == "none"]
    assert list(ring.get_xdata()) == [1.0]
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.1", "1", "10"]
    (band,) = axes.collections
    low, high = band.get_paths()[0].vertices[:, 1].min(), band.get_paths()[0].vertices[:, 1].max()
    assert (low, high) == pytest.approx((0.41, 0.52))


@pytest.mark.parametrize("classes", [4, 12])
def test_few_classes_are_named_and_many_are_ranked(tmp_path: Path, classes: int) -> None:
    study = make_study(
        {"s": {"clipping_bound": [0.1, 1.0]}},
        classes=classes,
        figures={
            "f": {
                "family": "per_class", "caption": "c", "section": "s", "baseline": 1.0,
                "rows": ["accuracy_difference"], "panels": [{"title": "t", "sweep": "s"}],
            }
        },
    )  # fmt: skip
    write_cells(study, Paths(tmp_path), lambda cell, rate, seed: {})
    drawing, _ = plotted(study, Paths(tmp_path))
    axes = drawing.axes[0]
    named = "class 0" in [text.get_text() for text in axes.get_xticklabels()]
    assert named == (classes == 4)
    assert axes.get_xlabel() == ("Class, easy to hard" if named else "Class rank, easy to hard")
