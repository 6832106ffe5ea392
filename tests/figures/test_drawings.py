"""Drawings of every family: files, missing results, any frame, what a study may ask for, marks and texts."""

import itertools
import math
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
import yaml
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.text import Text
from pydantic import ValidationError
from tests.described import by_name, study_of
from tests.synthetic import (
    make_study,
    write_cells,
    write_dataset,
    write_gradient_norms,
    write_overlaps,
)

from dpsweep import figures
from dpsweep.analysis.frames import MissingResultsError, read_numbers
from dpsweep.base.errors import DpsweepError
from dpsweep.figures import draw, style
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths
from dpsweep.study.targets import how_chosen

SWEEP = {
    "epsilon": [1.0, 8.0], "epochs": [1, 2], "batch_size": [100, 200, "full"],
    "clipping_bound": [0.1, 1.0, 10.0], "seeds": 2,
}  # fmt: skip
FIGURES: dict[str, dict[str, Any]] = yaml.safe_load("""
heatmap: {panels: [&one {title: Digits, epsilon: 1.0, epochs: 2}]}
clipping_curve: {quantity: difference, panels: [{title: Digits, lines: [
  {label: easy, epsilon: 8.0, epochs: 2}, {label: hard, epsilon: 1.0, epochs: 2}]}]}
gradient_norm_distribution: {panels: [&at_1 {<<: *one, clipping_bound: 1.0}]}
gradient_norm_histogram: {panels: [*at_1]}
per_class: {baseline: 1.0, panels: [*one]}
method_comparison: {panels: [{title: Digits, lines: [
  {label: tuned, epochs: 1}, {label: AUTO-S, epochs: 1, clipping_bound: automatic}]}]}
noise_curve: {cells: {epochs: all}, minimum_steps: {digits_small_film: 5},
  axes: [{title: By steps, quantity: cumulative, x: steps}]}
attacker_curves:
  records: [1, 3]
  panels: [&measured {title: Digits, epochs: 2, batch_size: 100, clipping_bound: 1.0}]
norm_trace: {panels: [{title: Digits, epochs: 2}]}
optimal_batch_size: {panels: [{title: Digits, epochs: all}]}
error_decomposition: {panels: [{<<: *measured, title: loose, epsilon: 8.0},
  {<<: *measured, title: tight, epsilon: 1.0}]}
optimal_clipping_trace: {panels: [*measured]}
privacy_effects: {panels: [*measured]}
predicted_clipping: {panels: [{<<: *measured, clipping_bound: all},
  {<<: *measured, clipping_bound: automatic, title: AUTO-S}]}
""")
FAMILIES = list(FIGURES)
STUDY = make_study(
    {"s": SWEEP, "auto": SWEEP | {"clipping_bound": "automatic"}},
    figures={
        family: {"family": family, "caption": "c", "section": "s"} | settings
        for family, settings in FIGURES.items()
    },
)


def outcome(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
    bound = 0.01 if isinstance(cell.clipping_bound, str) else cell.clipping_bound
    accuracy = 0.6 + 0.02 * math.log2(cell.epsilon) - 0.05 * abs(math.log10(bound)) + 0.01 * seed
    return {
        "macro_accuracy": accuracy,
        "per_class_accuracy": [accuracy + 0.1, accuracy, math.nan, accuracy - 0.1],
        "noise_multiplier": 2 / cell.epsilon,
    }


def write_norms(study: Study, paths: Paths) -> None:
    random, measured = np.random.default_rng(0), np.random.default_rng(1)
    for cell in study.sweep_cells("s"):
        if (
            cell.batch_size == 100 and cell.epsilon == 1 and cell.epochs == 2
        ):  # the smallest wins ties
            norms = [(np.arange(100) % 4, random.lognormal(size=100)) for _ in range(cell.epochs)]
            write_gradient_norms(study, paths, cell, 0.01, norms)
        if cell.batch_size == 100 and cell.epochs == 2 and cell.clipping_bound == 1:
            gradients = [[measured.normal(1, 2, size=(20, 4)) / cell.epsilon] * 2 for _ in range(3)]
            write_overlaps(study, paths, cell, 2 / cell.epsilon, gradients)


def write_results(folder: Path, study: Study = STUDY) -> Paths:
    """Write all results that the figures of the study read."""
    paths = Paths(folder)
    write_cells(study, paths, outcome, steps_too=True)
    write_norms(study, paths)
    write_dataset(paths, "digits", [250] * 4)
    return paths


def one_seed() -> Study:
    content = STUDY.model_dump(mode="json", exclude_none=True)
    for sweep in content["sweeps"].values():
        sweep["seeds"] = 1
    return study_of(content)


def diverging(cell: Cell, rate: float, seed: int) -> dict[str, Any]:
    lost = cell.clipping_bound == 10.0 or seed == 2
    return outcome(cell, rate, seed) | (
        {"macro_accuracy": math.nan, "diverged": True, "step_norms": math.nan} if lost else {}
    )


Folder = Callable[[str], Paths]


@pytest.fixture(scope="module")
def folder(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """A function that makes each folder of results once, by its name."""

    @cache
    def made(name: str) -> Paths:
        root = tmp_path_factory.mktemp("drawn") / "results"
        if name == "none":
            return Paths(root, partial=True)
        if name == "some of one seed":
            paths = write_results(root, one_seed())
            for file in [*root.rglob("eps8_*.parquet"), *root.glob("cells/*/eps8_*/*")]:
                file.unlink()
            return Paths(paths.results, partial=True)
        paths = Paths(shutil.copytree(results, root))
        if name == "diverging":
            write_cells(STUDY, paths, diverging, steps_too=True)
        return paths

    return made


@pytest.fixture
def sketched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip writing PDF and PNG, which takes most of the time; another test covers it for every family."""

    def save(figure: Figure, pdf: Path, png: Path) -> None:
        figure.draw_without_rendering()

    monkeypatch.setattr(style, "save", save)


@pytest.mark.parametrize("family", ["heatmap", "clipping_curve"])
def test_files_are_ready_for_print(folder: Folder, family: str) -> None:
    paths = folder("all")
    draw(STUDY, paths, family)
    pdf, png = (paths.figure(family, suffix).read_bytes() for suffix in ("pdf", "png"))
    assert b"/FontFile2" in pdf and b"DejaVuSans" in pdf  # embedded as TrueType
    assert b"/Type3" not in pdf and b"CreationDate" not in pdf
    assert 1.5 * 300 < int.from_bytes(png[16:20], "big") <= 5.5 * 300
    position = png.index(b"pHYs") + 4
    assert int.from_bytes(png[position : position + 4], "big") == round(300 / 0.0254)
    numbers = STUDY.figures[family].compute(STUDY, paths)
    read = read_numbers(paths.figure(family, "csv"))
    assert list(read.columns) == list(numbers.columns)
    for column in numbers.select_dtypes("number"):
        np.testing.assert_array_equal(read[column], numbers[column])  # in full precision


@pytest.mark.usefixtures("sketched")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "name", [pytest.param("none", marks=pytest.mark.slow), "some of one seed", "diverging"]
)
def test_figures_are_drawn_without_absent_or_diverged_results(
    folder: Folder, family: str, name: str
) -> None:
    paths = folder(name)
    draw(one_seed() if "seed" in name else STUDY, paths, family)
    pd.read_csv(paths.figure(family, "csv"))
    assert not paths.partial or not Paths(paths.results).figure(family, "csv").exists()


@pytest.mark.parametrize("family", FAMILIES)
def test_absent_results_are_an_error_that_names_a_missing_file(tmp_path: Path, family: str) -> None:
    with pytest.raises(MissingResultsError) as raised:
        draw(STUDY, Paths(tmp_path), family)
    (first,) = raised.value.remake
    assert str(first) in str(raised.value)
    assert not (tmp_path / "figures").exists()
    with pytest.raises(DpsweepError, match=r'"fig9"; .*allowed: .*clipping_curve'):
        draw(STUDY, Paths(tmp_path), "fig9")


# -- any frame, as in a notebook -----------------------------------------------------------


@pytest.fixture(scope="module")
def frames(results: Path) -> dict[str, pd.DataFrame]:
    """A frame of one panel with the required columns, by family."""
    found = {}
    for family, figure in STUDY.figures.items():
        numbers = figure.compute(STUDY, Paths(results))
        keys, others = figure.columns()
        for part in {"panel", "records", *([] if "label" in others else ["line"])} & {*numbers}:
            numbers = numbers[numbers[part] == numbers[part].min()]
        found[family] = numbers[list(dict.fromkeys([*keys, *others]))].reset_index(drop=True)
    return found


def drawn_from(family: str, frame: pd.DataFrame) -> Figure:
    axes = [figures.NoiseAxes(title="t", quantity="cumulative", x="steps")]
    options: dict[str, Any] = {"axes": axes} if family == "noise_curve" else {}
    figure: Figure = by_name(family).draw(frame, **options)
    figure.draw_without_rendering()
    return figure


@pytest.mark.parametrize("family", FAMILIES)
def test_the_required_columns_are_enough(frames: dict[str, pd.DataFrame], family: str) -> None:
    found = [str(each.get_text()) for each in drawn_from(family, frames[family]).findobj(Text)]  # type: ignore[attr-defined]
    assert not any("nan" in text or "()" in text for text in found)


@pytest.mark.parametrize("family", ["heatmap", "clipping_curve"])
def test_a_frame_that_cannot_be_drawn_is_refused(
    frames: dict[str, pd.DataFrame], family: str
) -> None:
    frame = frames[family]
    number = frame.select_dtypes("number").columns[-1]
    for other, said in (
        (frame.iloc[:0], "the frame has no row; "),
        (pd.concat([frame, frame]), "found two rows of panel 0, "),
        (frame.assign(**{number: "a"}), f"column {number}: .*allowed: numbers"),
        (frame.assign(panel=np.nan), "column panel: found a row without a value"),
    ):
        with pytest.raises(ValueError, match=said):
            drawn_from(family, other)
    # Two lines of one label would be drawn as one zigzag.
    lines = {"clipping_bound": [0.1, 1.0] * 2, "centre": [0.1, 0.2, 0.3, 0.4], "line": [0, 0, 1, 1]}
    figures.ClippingCurve.draw(pd.DataFrame(lines | {"label": [0.3, 0.3, 0.1 + 0.2, 0.1 + 0.2]}))
    with pytest.raises(ValueError, match="found one for several lines"):
        figures.ClippingCurve.draw(pd.DataFrame(lines | {"label": "one"}))


# -- what a study may ask for --------------------------------------------------------------

GRID = {
    "epsilon": [1.0, 8.0],
    "epochs": [1, 2],
    "batch_size": [100, 200],
    "clipping_bound": [0.1, 1],
}
ONE = {"title": "t", "epsilon": 1.0, "epochs": 1}
AUTOMATIC = {"title": "t", "clipping_bound": "automatic"}
LINES = {"title": "t", "lines": [{"label": "l", "epochs": 1}]}
NO_NUMBERS = "clipping_bound: found automatic; allowed: numbers"  # figures over C need bounds


@pytest.mark.parametrize(
    ("family", "panel", "settings", "said"),
    [
        ("heatmap", {"title": "t", "epochs": 1}, {"x": "epsilon", "y": "clipping_bound"}, ""),
        ("method_comparison", LINES, {}, ""),
        ("clipping_curve", LINES, {}, "epsilon: found 1, 8"),
        ("per_class", ONE, {"baseline": 1.0}, ""),
        ("per_class", ONE, {"baseline": 3.0},
         "baseline: found 3; allowed: a clipping bound of digits_small_film"),
        ("clipping_curve", {"lines": [{"clipping_bound": "automatic", "label": "l"}]}, {}, NO_NUMBERS),
        ("gradient_norm_histogram", AUTOMATIC, {}, NO_NUMBERS),
        ("per_class", AUTOMATIC, {"baseline": 1.0}, NO_NUMBERS),
    ],
)  # fmt: skip
def test_a_selection_that_a_figure_cannot_draw_is_named(
    family: str, panel: dict[str, Any], settings: dict[str, Any], said: str
) -> None:
    sweeps = {"s": GRID, "auto": GRID | {"clipping_bound": "automatic"}}
    target = {"family": family, "caption": "c", "section": "s", "panels": [panel]} | settings
    if not said:
        assert make_study(sweeps, figures={"f": target}).figures
        return
    with pytest.raises(ValidationError, match=f"figures.py, line 6: f: .*{said}") as refused:
        make_study(sweeps, figures={"f": target})
    (found,) = refused.value.errors()
    assert len(str(found["ctx"]["error"]).splitlines()) == 1


# -- marks, colours and texts of given numbers --------------------------------------------


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
    frame["as_good"] = frame["batch_size"].lt(ALL) & frame["clipping_bound"].le(1)
    axes, bar = placed(figures.Heatmap.draw(frame)).axes
    assert labels(axes.get_xticklabels()) == ["0.1", "1", "10", "42"]
    assert labels(axes.get_yticklabels()) == ["Full", "200", "100"]
    assert axes.yaxis_inverted()  # Full is at the top
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("Clipping bound C", "Batch size B")
    assert bar.get_ylabel() == "Macro accuracy"
    assert sides(axes) == around(0, 1, 2, 3)  # one outline around four squares
    inside = [text for text in axes.texts if text.get_text()[0] in ".–"]
    beside = set(axes.texts) - set(inside)
    assert {each.get_text() for each in beside} == {"framed: 4 of 12", "η = 0.01"}
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
    axes = placed(figures.Heatmap.draw(frame)).axes[0]
    assert len(set(labels(axes.get_xticklabels()))) == 3
    assert [text for text in texts(axes) if text[0] == "."] == [".100", ".200", ".300"]
    points = itertools.product(alike, [0.01, 0.1])
    frame = pd.DataFrame(points, columns=["epsilon", "false_positive_rate"])
    drawing = figures.AttackerCurves.draw(frame.assign(true_positive_rate=0.5))
    assert len({text.get_text() for text in drawing.legends[0].get_texts()}) == 2
    sizes = pd.DataFrame(itertools.product(alike, [2, 4]), columns=["epsilon", "epochs"])
    drawing = figures.OptimalBatchSize.draw(sizes.assign(mean_batch_size=100.0, train_size=ALL))
    assert len({text.get_text() for text in drawing.axes[0].get_legend().get_texts()}) == 2


@pytest.mark.parametrize("scale", ["shared", "panel"])
def test_accuracies_in_per_cent_are_written_as_such(scale: Literal["shared", "panel"]) -> None:
    frame = squares([200], [0.1, 1.0, 10.0], macro_accuracy=[0.42, 71.26, 100.0])
    axes, bar = placed(figures.Heatmap.draw(frame, colour_scale=scale)).axes
    assert [text for text in texts(axes) if text[0].isdigit()] == ["0.4", "71.3", "100"]
    assert "Macro accuracy (%)" in (bar.get_ylabel(), bar.get_xlabel())
    assert scale == "shared" or labels(bar.get_xticklabels()) == ["0.4", "100"]


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        (1, "There is no framed square: with one seed"),
        (3, "Each framed square is not significantly worse than the best of its panel"),
    ],
)
def test_captions_explain_frames(seeds: int, said: str) -> None:
    target = {"family": "heatmap", "caption": "c", "section": "s", "panels": [ONE]}
    study = make_study({"s": GRID | {"seeds": seeds}}, figures={"f": target})
    assert said in " ".join(how_chosen(study, study.figures["f"]))


# -- lines ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "window"), [(40, None), (400, 9)])
def test_a_running_mean_of_steps_is_named_with_its_length(
    tmp_path: Path, steps: int, window: int | None
) -> None:
    target = FIGURES["norm_trace"] | {"family": "norm_trace", "caption": "c", "section": "s"}
    study = make_study({"s": {"batch_size": [2000 // steps]}}, figures={"f": target})
    norms = {"step_norms": np.arange(steps) ** 2}
    write_cells(study, Paths(tmp_path), lambda *_: norms, steps_too=True)
    numbers = study.figures["f"].compute(study, Paths(tmp_path))
    drawing = figures.NormTrace.draw(numbers)
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
    *panels, losses = figures.PredictedClipping.draw(frame).axes
    assert [texts(axes)[0] for axes in panels] == [said] * 3
    assert labels(losses.get_yticklabels()) == [rules[place] for place in (1, 3, 0, 2)]
    assert texts(losses)[0] == "1.00 (4 settings)"
