"""Properties of figures of every family: files, missing results, any frame, what a study may ask for."""

import math
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
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

from dpsweep.analysis.frames import MissingResultsError, read_numbers
from dpsweep.base.errors import DpsweepError
from dpsweep.figures import draw, families, style
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths

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
    axes = [families.NoiseAxes(title="t", quantity="cumulative", x="steps")]
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


def test_two_lines_of_one_label_are_refused() -> None:
    """They would be drawn as one zigzag."""
    lines = {"clipping_bound": [0.1, 1.0] * 2, "centre": [0.1, 0.2, 0.3, 0.4], "line": [0, 0, 1, 1]}
    families.ClippingCurve.draw(pd.DataFrame(lines | {"label": [0.3, 0.3, 0.1 + 0.2, 0.1 + 0.2]}))
    with pytest.raises(ValueError, match="found one for several lines"):
        families.ClippingCurve.draw(pd.DataFrame(lines | {"label": "one"}))


# -- what a study may ask for --------------------------------------------------------------

ASKED = {
    **{"epsilon": [1.0, 8.0], "epochs": [1, 2]},
    **{"batch_size": [100, 200], "clipping_bound": [0.1, 1.0]},
}
ONE = {"epsilon": 1.0, "epochs": 1}
AUTOMATIC = {"title": "t", "clipping_bound": "automatic"}
LINE_OF_AUTOMATIC = {"title": "t", "lines": [{"label": "l", "clipping_bound": "automatic"}]}
LINES = {"title": "t", "lines": [{"label": "l", "epochs": 1}]}
BASELINE: dict[str, Any] = {"baseline": 1.0, "panels": [{"title": "t"} | ONE]}


def mistakes(family: str, **settings: Any) -> list[str]:
    """Return a study's error messages about a figure."""
    sweeps = {"s": ASKED, "auto": ASKED | {"clipping_bound": "automatic"}}
    target = {"family": family, "caption": "c", "section": "s"} | settings
    try:
        make_study(sweeps, figures={"f": target})
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
