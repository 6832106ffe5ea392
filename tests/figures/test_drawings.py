"""What is drawn from the numbers: marks, colours and labels in the right places."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from tests.synthetic import (
    Outcome,
    make_study,
    write_cells,
    write_gradient_norms,
    write_overlaps,
)

from dpsweep.figures import style
from dpsweep.study import Cell, Study
from dpsweep.study.captions import how_chosen
from dpsweep.study.paths import Paths


def plotted(study: Study, paths: Paths) -> tuple[Figure, pd.DataFrame]:
    figure = study.figures["f"]
    numbers = figure.compute(study, paths)
    with style.style():
        drawing = figure.plot(numbers)
        drawing.draw_without_rendering()
    return drawing, numbers


def study_with(sweep: dict[str, Any], **target: Any) -> Study:
    return make_study({"s": sweep}, figures={"f": {"caption": "c", "section": "s"} | target})


def drawn(
    folder: Path, sweep: dict[str, Any], outcome: Outcome, **target: Any
) -> tuple[Figure, pd.DataFrame]:
    """The one figure of a study with one sweep, of made-up trials."""
    study = study_with(sweep, **target)
    write_cells(study, Paths(folder), outcome, steps_too=target["family"] == "norm_trace")
    return plotted(study, Paths(folder))


def half(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
    """Every trial reaches the same."""
    return {"macro_accuracy": 0.5}


def square(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
    size = 1000 if cell.batch_size == "full" else cell.batch_size
    if (size, cell.clipping_bound) == (200, 10.0):
        return {"macro_accuracy": math.nan, "diverged": True}
    bound = float(cell.clipping_bound)
    return {"macro_accuracy": 0.9 - 0.1 * abs(math.log10(bound)) - 0.0001 * abs(size - 200)}


@pytest.fixture
def heatmap(tmp_path: Path) -> Figure:
    grid = {"batch_size": [100, 200, "full"], "clipping_bound": [0.1, 1.0, 10.0, 42.0]}
    panels = [{"title": "Digits, ε = 8"}]
    return drawn(tmp_path, grid | {"seeds": 3}, square, family="heatmap", panels=panels)[0]


def sides(axes: Axes) -> set[frozenset[tuple[float, float]]]:
    """The sides of the frames, each by its ends."""
    lines = [each for each in axes.collections if isinstance(each, LineCollection)]
    drawn = [
        {frozenset((float(x), float(y)) for x, y in side) for side in line.get_segments()}
        for line in lines
    ]
    assert all(each == drawn[0] for each in drawn)  # white below red
    return drawn[0] if drawn else set()


def around(left: int, top: int, right: int, bottom: int) -> set[frozenset[tuple[float, float]]]:
    """The sides of the squares at the edge of a rectangle of squares."""
    columns = [(each, each + 1, y) for each in range(left, right) for y in (top, bottom)]
    rows = [(each, each + 1, x) for each in range(top, bottom) for x in (left, right)]
    found = {frozenset({(one, y), (other, y)}) for one, other, y in columns}
    return found | {frozenset({(x, one), (x, other)}) for one, other, x in rows}


def test_a_heatmap_has_the_grid_as_axes_and_frames_the_best_square(heatmap: Figure) -> None:
    axes = heatmap.axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.1", "1", "10", "42"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Full", "200", "100"]
    assert axes.yaxis_inverted()  # so that Full is at the top
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Clipping bound C", "Batch size B")
    assert heatmap.axes[1].get_ylabel() == "Macro accuracy"  # the colour bar
    assert sides(axes) == around(1, 1, 2, 2)  # C = 1, B = 200


def test_squares_that_seeds_do_not_tell_apart_have_one_outline(tmp_path: Path) -> None:
    def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        lost = 0.2 * (cell.clipping_bound == 10.0) + 0.01 * (cell.clipping_bound == 0.1)
        lost += 0.2 * (cell.batch_size == 100)
        return {"macro_accuracy": 0.7 - lost + 0.01 * (seed - 2) - (rate == 0.02) * 0.1}

    grid = {"batch_size": [100, 200, 400], "clipping_bound": [0.1, 1.0, 10.0], "seeds": 3}
    drawing, numbers = drawn(
        tmp_path, grid | {"learning_rate": [0.01, 0.02]}, outcome,
        family="heatmap", panels=[{"title": "t"}],
    )  # fmt: skip
    assert sides(drawing.axes[0]) == around(0, 0, 2, 2)
    above = [text.get_text() for text in drawing.axes[0].texts[-2:]]
    assert sorted(above) == ["framed: 4 of 9", "η = 0.01"]
    # The numbers tell what is chosen from what is as good.
    chosen = numbers[numbers["best"]]
    assert (chosen["clipping_bound"].item(), chosen["batch_size"].item()) == (1.0, 200)
    assert numbers["as_good"].sum() == 4


def test_one_seed_marks_nothing_and_the_caption_says_so(tmp_path: Path) -> None:
    grid = {"batch_size": [100, 200], "clipping_bound": [0.1, 1.0]}
    target: dict[str, Any] = {"family": "heatmap", "panels": [{"title": "t"}]}
    drawing, _ = drawn(tmp_path, grid, square, **target)
    assert sides(drawing.axes[0]) == set()
    said = {}
    for seeds in (1, 3):
        study = study_with(grid | {"seeds": seeds}, **target)
        said[seeds] = " ".join(how_chosen(study, study.figures["f"]))
    assert "There is no framed square: with one seed" in said[1]
    assert "Each framed square is as good as the best of its panel" in said[3]


def test_a_heatmap_writes_every_value_and_the_best_learning_rate(heatmap: Figure) -> None:
    texts = [text for text in heatmap.axes[0].texts if text.get_text()[0] in ".–"]
    above = {text.get_text() for text in heatmap.axes[0].texts} - {
        text.get_text() for text in texts
    }
    assert above == {"framed: 1 of 12", "η = 0.01"}
    written = {
        (math.floor(text.get_position()[0]), math.floor(text.get_position()[1])): text.get_text()
        for text in texts
    }
    assert len(texts) == len(written) == 12
    assert written[1, 1] == ".900"
    assert written[0, 2] == ".790"  # C = 0.1, B = 100: the lowest row
    assert written[2, 1] == "–"  # diverged


def test_panels_share_their_rows_and_what_is_not_in_a_grid_is_empty(tmp_path: Path) -> None:
    sizes = {8.0: [100, 200, "full"], 1.0: [200, 400, "full"]}
    study = make_study(
        {
            f"s{epsilon:g}": {"epsilon": [epsilon], "batch_size": size, "clipping_bound": [0.1, 1]}
            for epsilon, size in sizes.items()
        },
        figures={
            "f": {"caption": "c", "section": "s", "family": "heatmap",
                  "panels": [{"title": f"{epsilon:g}", "epsilon": epsilon} for epsilon in sizes]}
        },
    )  # fmt: skip
    write_cells(study, Paths(tmp_path), half)
    left, right, *_ = plotted(study, Paths(tmp_path))[0].axes
    assert [each.get_text() for each in left.get_yticklabels()] == ["Full", "400", "200", "100"]
    assert not right.get_yticklabels()
    for axes, empty in ((left, 1), (right, 3)):
        written = {
            math.floor(text.get_position()[1]) for text in axes.texts if text.get_text() == ".500"
        }
        assert written == {0, 1, 2, 3} - {empty}


@pytest.mark.parametrize("panels", [2, 3, 4, 5])
def test_no_panel_stands_alone_in_the_last_of_several_rows(tmp_path: Path, panels: int) -> None:
    budgets = [float(each) for each in range(1, panels + 1)]
    bounds = [float(each) for each in range(1, 11)]  # two panels side by side are as wide as a page
    drawing, _ = drawn(
        tmp_path, {"epsilon": budgets, "clipping_bound": bounds, "batch_size": [100, 200]}, half,
        family="heatmap", colour_scale="panel",
        panels=[{"title": f"{each:g}", "epsilon": each} for each in budgets],
    )  # fmt: skip
    heights = [round(axes.get_position().y0, 2) for axes in drawing.axes if axes.get_title()]
    in_last_row = heights.count(min(heights))
    assert len(set(heights)) == panels or in_last_row > 1


def test_where_b_is_no_axis_every_square_says_what_was_chosen(tmp_path: Path) -> None:
    drawing, _ = drawn(
        tmp_path,
        {"epsilon": [1.0, 8.0], "batch_size": [100, "full"], "clipping_bound": [0.1, 1.0]},
        lambda cell, rate, seed: {"macro_accuracy": 0.5 + 0.1 * (cell.batch_size == "full")},
        family="heatmap", x="epsilon", y="clipping_bound", panels=[{"title": "t"}],
    )  # fmt: skip
    assert {text.get_text() for text in drawing.axes[0].texts} == {".600\nB = Full\nη = 0.01"}
    assert drawing.axes[0].get_xlabel() == "Privacy budget ε"


def test_numbers_lie_within_the_frame_of_the_best_square(tmp_path: Path) -> None:
    """Rows that differ from panel to panel have labels of their own, which narrow the squares."""
    bounds = [0.5, 4.0, 8.0, 12.0, 16.0, 24.0, 40.0]
    sizes = {8.0: [100, 200, 400], 4.0: [200, 400], 1.0: [200, 800]}
    study = make_study(
        {
            f"s{epsilon:g}": {"epsilon": [epsilon], "batch_size": size, "clipping_bound": bounds}
            for epsilon, size in sizes.items()
        },
        figures={
            "f": {
                **{"caption": "c", "section": "s", "family": "heatmap", "colour_scale": "panel"},
                "panels": [{"title": f"ε = {epsilon:g}", "epsilon": epsilon} for epsilon in sizes],
            }
        },
    )
    write_cells(study, Paths(tmp_path), lambda cell, rate, seed: {"macro_accuracy": 0.4884})
    drawing, _ = plotted(study, Paths(tmp_path))
    frame = 0.7 * drawing.dpi / 72  # half of its line
    checked = 0
    for axes in drawing.axes:
        for text in (text for text in axes.texts if text.get_text() == ".488"):
            x, y = (math.floor(each) for each in text.get_position())
            (left, _), (right, _) = axes.transData.transform([(x, y), (x + 1, y)])
            written = text.get_window_extent()
            assert left + frame < written.x0
            assert written.x1 < right - frame
            checked += 1
    assert checked == len(bounds) * sum(map(len, sizes.values()))


def test_a_crowded_heatmap_leaves_the_values_to_the_colours(tmp_path: Path) -> None:
    bounds = [float(bound) for bound in range(1, 41)]
    grid = {"batch_size": [100, 200], "clipping_bound": bounds, "seeds": 2}
    drawing, _ = drawn(tmp_path, grid, half, family="heatmap", panels=[{"title": "t"}])
    above = {text.get_text() for text in drawing.axes[0].texts}
    assert above == {"framed: 80 of 80", "η = 0.01"}
    assert drawing.get_figwidth() <= style.look().page_width + 1e-9


@pytest.mark.parametrize("scale", ["shared", "panel"])
def test_the_colour_scale_is_shared_or_of_each_panel(tmp_path: Path, scale: str) -> None:
    drawing, _ = drawn(
        tmp_path,
        {"epsilon": [1.0, 8.0], "batch_size": [100, 200], "clipping_bound": [0.1, 1.0]},
        lambda cell, rate, seed: {"macro_accuracy": 0.1 * cell.epsilon * cell.clipping_bound},
        family="heatmap", colour_scale=scale,
        panels=[{"title": f"{e:g}", "epsilon": e} for e in (1.0, 8.0)],
    )  # fmt: skip
    limits = [axes.collections[0].get_clim() for axes in drawing.axes if axes.get_title()]
    shared, one, eight = (0.01, 0.8), (0.01, 0.1), (0.08, 0.8)
    expected = [shared, shared] if scale == "shared" else [one, eight]
    assert [pytest.approx(pair) for pair in expected] == limits
    bars = [axes for axes in drawing.axes if not axes.get_title()]
    assert len(bars) == (1 if scale == "shared" else 2)


def legend_of(axes: Axes) -> dict[str, str]:
    legend = axes.get_legend()
    assert legend is not None
    return {
        text.get_text(): to_hex(handle.get_color())
        for text, handle in zip(legend.get_texts(), legend.legend_handles, strict=True)
    }


def curve(
    tmp_path: Path,
    difficulties: list[str | None],
    seeds: int = 2,
    worst: float = 0.4,
    **target: Any,
) -> Figure:
    """The best C of a line is its epsilon; every other C costs 0.1, C = 10 goes down to ``worst``."""
    budgets = [1.0, 2.0, 4.0, 8.0][: len(difficulties)]
    lines = [
        {"label": f"{budget:g}", "epsilon": budget, "difficulty": difficulty}
        for budget, difficulty in zip(budgets, difficulties, strict=True)
    ]
    grid = {
        "epsilon": budgets, "clipping_bound": [0.1, 1.0, 10.0], "seeds": seeds,
        "batch_size": [100, "full"], "learning_rate": [0.01, 0.02],
    }  # fmt: skip

    def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        accuracy = 0.5 if cell.clipping_bound == cell.epsilon else 0.4
        accuracy = worst if cell.clipping_bound == 10 else accuracy
        chosen = (cell.batch_size == "full") == (cell.clipping_bound == 1.0) and rate == 0.02
        return {"macro_accuracy": accuracy + 0.01 * seed - 0.2 * (not chosen)}

    panels = [{"title": "Digits", "lines": lines}]
    return drawn(tmp_path, grid, outcome, family="clipping_curve", panels=panels, **target)[0]


def test_easy_is_blue_and_hard_is_orange(tmp_path: Path) -> None:
    axes = curve(tmp_path, ["hard", "easy"]).axes[0]
    assert legend_of(axes) == {"1": style.look().hard.lower(), "2": style.look().easy.lower()}
    drawn = [to_hex(line.get_color()) for line in axes.lines]
    assert drawn == [style.look().hard.lower(), style.look().easy.lower()]


@pytest.mark.parametrize("count", [1, 4])
def test_a_legend_never_lies_on_what_is_drawn(tmp_path: Path, count: int) -> None:
    axes = curve(tmp_path, [None] * count).axes[0]
    assert list(legend_of(axes).values()) == style.ordered_colours(count)
    legend = axes.get_legend()
    assert legend is not None
    assert legend.get_window_extent().y0 >= axes.get_window_extent().y1 - 1
    highest = max(text.get_window_extent().y1 for text in legend.get_texts())
    assert axes.title.get_window_extent().y0 >= highest


def test_the_best_point_is_ringed_and_the_axis_is_logarithmic(tmp_path: Path) -> None:
    drawing = curve(tmp_path, ["easy"])
    (ring,) = [each for each in drawing.axes[0].collections if not len(each.get_facecolor())]
    assert ring.get_offsets()[0].tolist() == pytest.approx([1.0, 0.515])
    below = drawing.axes[-1]
    assert below.get_xscale() == "log"
    assert below.get_xlabel() == "Clipping bound C (log scale)"
    assert [label.get_text() for label in below.get_xticklabels()] == ["0.1", "1", "10"]


@pytest.mark.parametrize("seeds", [1, 3, 5])
def test_few_repeats_are_points_and_many_are_a_band(tmp_path: Path, seeds: int) -> None:
    axes = curve(tmp_path, ["easy"], seeds).axes[0]
    bands = [each for each in axes.collections if isinstance(each, PolyCollection)]
    points = [
        each.get_offsets() for each in axes.collections if len(each.get_facecolor()) and each not in bands
    ]  # fmt: skip
    assert (len(bands), [len(each) for each in points]) == (
        {1: (0, []), 3: (0, [3] * 3), 5: (1, [])}[seeds]
    )
    if bands:
        heights = bands[0].get_paths()[0].vertices[:, 1]
        assert (heights.min(), heights.max()) == pytest.approx((0.41, 0.55))


def test_repeats_are_drawn_in_one_way_where_lines_have_different_numbers_of_them(
    tmp_path: Path,
) -> None:
    """A band of five seeds is wider than one of three that says the same."""
    lines = [{"label": f"{each:g}", "epsilon": each} for each in (1.0, 8.0)]
    grid = {"clipping_bound": [0.1, 1.0]}
    study = make_study(
        {
            "three": {"epsilon": [1.0], "seeds": 3} | grid,
            "five": {"epsilon": [8.0], "seeds": 5} | grid,
        },
        figures={
            "f": {"family": "clipping_curve", "caption": "{spread}", "section": "s",
                  "panels": [{"title": "Digits", "lines": lines}]}
        },
    )  # fmt: skip
    write_cells(study, Paths(tmp_path), lambda cell, rate, seed: {"macro_accuracy": 0.1 * seed})
    axes = plotted(study, Paths(tmp_path))[0].axes[0]
    assert not any(isinstance(each, PolyCollection) for each in axes.collections)
    caption = study.figures["f"].caption
    assert caption == "small points are the seeds, of which some lines have more than others"


def best_sizes(tmp_path: Path) -> tuple[Figure, pd.DataFrame]:
    """Two panels of other budgets; every seed but the first finds the largest B best."""
    panels = [{"title": "a", "epochs": "all", "epsilon": [0.5, 8.0]},
              {"title": "b", "epochs": "all", "epsilon": [0.25, 8.0]}]  # fmt: skip
    grid = {"epsilon": [0.25, 0.5, 8.0], "epochs": [1, 2], "batch_size": [100, 400], "seeds": 3}

    def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        return {"macro_accuracy": 0.5 + 0.1 * ((cell.batch_size == 400) == (seed > 1))}

    return drawn(tmp_path, grid, outcome, family="optimal_batch_size", panels=panels)


def test_a_legend_of_all_panels_is_in_the_order_of_epsilon(tmp_path: Path) -> None:
    drawing, _ = best_sizes(tmp_path)
    (legend,) = drawing.legends
    assert [text.get_text() for text in legend.get_texts()] == ["ε = 0.25", "ε = 0.5", "ε = 8"]


def test_lines_of_the_same_values_do_not_hide_each_other(tmp_path: Path) -> None:
    drawing, _ = best_sizes(tmp_path)
    for axes in (drawing.axes[0], drawing.axes[-1]):  # the panel, and a strip below
        lines = [each for each in axes.lines if each.get_linestyle() == "-"]
        values = {tuple(line.get_ydata()) for line in lines}
        heights = {line.get_transform().transform(line.get_xydata())[0, 1] for line in lines}
        assert (len(values), len(heights)) == (1, 2)


def test_the_chosen_batch_size_and_learning_rate_stand_under_the_panel(tmp_path: Path) -> None:
    _, batch_size, rate = curve(tmp_path, ["easy"]).axes
    assert (batch_size.get_ylabel(), rate.get_ylabel()) == ("B", "η")
    assert batch_size.lines[0].get_xydata().tolist() == [[0.1, 100], [1, 1000], [10, 100]]
    assert [label.get_text() for label in batch_size.get_yticklabels()] == ["100", "Full"]
    assert rate.lines[0].get_ydata().tolist() == [0.02] * 3


@pytest.mark.parametrize("worst", [0.4, 0.1])
def test_what_is_far_below_the_best_is_a_number_at_the_edge(tmp_path: Path, worst: float) -> None:
    axes = curve(tmp_path, ["easy"], worst=worst, quantity="difference").axes[0]
    texts = [text.get_text() for text in axes.texts]
    assert texts == ([] if worst == 0.4 else ["↓ −0.40"])
    assert (axes.get_ylim()[0] > -0.15) == (worst == 0.1) or worst == 0.4


@pytest.mark.parametrize("quantity", ["accuracy", "difference"])
@pytest.mark.parametrize("count", [1, 2])
def test_panels_whose_vertical_axes_differ_say_so(
    tmp_path: Path, quantity: str, count: int
) -> None:
    budgets = [1.0, 8.0][:count]
    panels = [
        {"title": f"{each:g}", "lines": [{"label": "a", "epsilon": each}]} for each in budgets
    ]
    grid = {"epsilon": budgets, "clipping_bound": [0.1, 1.0, 10.0], "batch_size": [100]}

    def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        return {"macro_accuracy": 0.1 * cell.epsilon - 0.01 * abs(math.log10(cell.clipping_bound))}

    settings = {"family": "clipping_curve", "quantity": quantity, "panels": panels}
    drawing, _ = drawn(tmp_path, grid, outcome, **settings)
    limits = {axes.get_ylim() for axes in drawing.axes[:count]}
    said = "The vertical axes of the panels differ." in drawing.get_supxlabel()
    assert said == (len(limits) > 1) == (count == 2 and quantity == "accuracy")


@pytest.mark.parametrize(("steps", "window"), [(40, None), (400, 9)])
def test_a_running_mean_of_steps_is_named_with_its_length(
    tmp_path: Path, steps: int, window: int | None
) -> None:
    drawing, numbers = drawn(
        tmp_path, {"batch_size": [2000 // steps]}, lambda *_: {"step_norms": np.linspace(3, 1, steps)},
        family="norm_trace", panels=[{"title": "2 epochs"}],
    )  # fmt: skip
    said = f"Thin: every step. Thick: running mean over up to {window} steps." if window else ""
    assert drawing.get_supxlabel() == said
    assert numbers["running_mean_over"].max() == (window or 1)
    assert len(drawing.axes[0].lines) == (2 if window else 1)


@pytest.mark.parametrize(
    ("problem", "marked"), [("digits_small_film", True), ("digits_large_film", False)]
)
def test_a_number_of_steps_is_marked_for_its_own_problem_alone(
    tmp_path: Path, problem: str, marked: bool
) -> None:
    axes = [{"title": quantity, "quantity": quantity, "x": x}
            for quantity, x in (("effective", "batch_size"), ("cumulative", "steps"))]  # fmt: skip
    study = study_with(
        {"batch_size": [50, 100]}, family="noise_curve", axes=axes, minimum_steps={problem: 20}
    )
    write_cells(study, Paths(tmp_path), lambda *_: {})
    drawing, _ = plotted(study, Paths(tmp_path))
    dashed = [[line.get_xdata()[0] for line in each.lines if line.get_linestyle() == "--"]
              for each in drawing.axes[:2]]  # fmt: skip
    assert dashed == [[], [20] if marked else []]
    labels = [text.get_text() for text in drawing.legends[0].get_texts()]
    assert ("20 steps" in labels) == marked
    assert ("20 steps" in study.figures["f"].caption) == marked


def study_of_classes(classes: int) -> Study:
    """A study whose figure draws every class."""
    return make_study(
        {"s": {"clipping_bound": [0.1, 1.0]}},
        classes=classes,
        figures={
            "f": {
                "family": "per_class", "caption": "c", "section": "s", "baseline": 1.0,
                "rows": ["accuracy_difference"], "panels": [{"title": "t"}],
            }
        },
    )  # fmt: skip


@pytest.mark.parametrize(("classes", "window"), [(40, None), (100, 5)])
def test_a_running_mean_of_classes_is_named_with_its_length(
    tmp_path: Path, classes: int, window: int | None
) -> None:
    study = study_of_classes(classes)
    accuracies = list(np.linspace(0.9, 0.1, classes))
    outcome = {"macro_accuracy": 0.5, "per_class_accuracy": accuracies}
    write_cells(study, Paths(tmp_path), lambda *_: outcome)
    drawing, numbers = plotted(study, Paths(tmp_path))
    said = f"Thin: every class. Thick: running mean over {window} classes."
    assert (said in drawing.get_supxlabel()) == (window is not None)
    assert ("running mean" in drawing.get_supxlabel()) == (window is not None)
    assert numbers["running_mean_over"].max() == (window or 1)


def histograms(tmp_path: Path) -> tuple[Figure, pd.DataFrame]:
    """Norms of two panels: spread over a decade, and all the same."""
    study = study_with(
        {"epsilon": [1.0, 8.0]},
        family="gradient_norm_histogram",
        panels=[{"title": f"{e:g}", "epsilon": e} for e in (8.0, 1.0)],
    )
    for cell in study.sweep_cells("s"):
        norms = np.geomspace(1, 10, 1000) if cell.epsilon == 8 else np.full(1000, 3.0)
        write_gradient_norms(study, Paths(tmp_path), cell, 0.01, [(np.zeros(1000), norms)] * 2)
    return plotted(study, Paths(tmp_path))


def test_a_spike_in_one_histogram_does_not_flatten_another(tmp_path: Path) -> None:
    drawing, numbers = histograms(tmp_path)
    highest = numbers.groupby("panel")["share"].max()
    for axes, high in zip(drawing.axes, highest, strict=True):
        assert high < axes.get_ylim()[1] < 1.5 * high
    assert "vertical axes of the panels differ" in drawing.get_supxlabel()


def test_the_full_batch_has_its_name_above_a_histogram(tmp_path: Path) -> None:
    study = study_with(
        {"batch_size": ["full"]}, family="gradient_norm_histogram", panels=[{"title": "t"}]
    )
    (cell,) = study.sweep_cells("s")
    write_gradient_norms(
        study, Paths(tmp_path), cell, 0.01, [(np.zeros(9), np.geomspace(1, 9, 9))] * 2
    )
    drawing, _ = plotted(study, Paths(tmp_path))
    assert drawing.axes[0].texts[-1].get_text() == "B = Full, η = 0.01"


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("family", ["privacy_effects", "optimal_clipping_trace"])
def test_a_range_to_zero_does_not_stretch_the_axis(tmp_path: Path, family: str, zero: bool) -> None:
    study = study_with({"epsilon": [1.0, 8.0]}, family=family, panels=[{"title": "t"}])
    aligned, opposed = np.full((4, 2), 3.0), np.array([[3.0, 0.0], [-9.0, 0.0]])
    for cell in study.sweep_cells("s"):
        draws = [aligned, aligned, opposed if zero else aligned]
        write_overlaps(study, Paths(tmp_path), cell, 50 / cell.epsilon, [draws] * 3)
    drawing, numbers = plotted(study, Paths(tmp_path))
    bottom, _ = drawing.axes[0].get_ylim()
    assert bottom > 0.2 * numbers.loc[numbers["best_bound"] > 0, "best_bound"].min()
    assert ("The lower edge" in drawing.get_supxlabel().replace("\n", " ")) == zero


@pytest.mark.parametrize(("low", "from_zero"), [(0.95, False), (0.1, True)])
def test_retained_weights_that_are_alike_are_not_pinned_to_the_top(
    tmp_path: Path, low: float, from_zero: bool
) -> None:
    study = study_with(
        {"clipping_bound": [1.0, 10.0]},
        family="per_class", baseline=10.0, panels=[{"title": "t"}],
    )  # fmt: skip
    paths = Paths(tmp_path)
    write_cells(study, paths, lambda cell, rate, seed: {})
    for cell in study.sweep_cells("s"):
        weights = np.array([1.0, 1.0, low, low]) if cell.clipping_bound == 1 else np.ones(4)
        norms = cell.clipping_bound / weights
        write_gradient_norms(study, paths, cell, 0.01, [(np.arange(4), norms)] * 2)
    axes = plotted(study, paths)[0].axes[0]
    bottom, top = axes.get_ylim()
    assert top > 1
    assert (bottom == 0) == from_zero
    assert from_zero or bottom > 0.9


@pytest.mark.parametrize("classes", [4, 12])
def test_few_classes_are_named_and_many_are_ranked(tmp_path: Path, classes: int) -> None:
    study = study_of_classes(classes)
    write_cells(study, Paths(tmp_path), lambda cell, rate, seed: {})
    drawing, _ = plotted(study, Paths(tmp_path))
    axes = drawing.axes[0]
    named = "class 0" in [text.get_text() for text in axes.get_xticklabels()]
    assert named == (classes == 4)
    assert axes.get_xlabel() == ("Class, easy to hard" if named else "Class rank, easy to hard")


@pytest.mark.parametrize(
    ("quantity", "symbol"),
    [
        ("effective", "σ / B"),
        ("cumulative", r"$\sigma\sqrt{T}$"),
        ("cumulative_effective", r"$\sigma\sqrt{T}\;/\;B$"),
    ],
)
@pytest.mark.parametrize(("x", "words"), [("batch_size", "Batch size B"), ("steps", "Steps T")])
def test_axes_of_noise_name_what_they_measure(
    tmp_path: Path, quantity: str, symbol: str, x: str, words: str
) -> None:
    axes = [{"title": "", "quantity": quantity, "x": x}]
    drawing, _ = drawn(tmp_path, {"batch_size": [50, 100]}, half, family="noise_curve", axes=axes)
    texts = [drawing.axes[0].get_ylabel(), drawing.axes[0].get_xlabel()]
    texts += [text.get_text() for text in drawing.texts]
    assert f"{symbol} (log scale)" in texts
    assert any(words in text for text in texts)
