"""Properties of figures of every family: files, reproducibility, missing results."""

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
from tests.described import study_of
from tests.synthetic import (
    make_study,
    write_cells,
    write_dataset,
    write_gradient_norms,
    write_overlaps,
)

from dpsweep.analysis.frames import MissingResultsError, read_numbers
from dpsweep.base.errors import DpsweepError
from dpsweep.figures import ClippingCurve, draw, style
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


Printed = Callable[[str], Paths]


@pytest.fixture(scope="module")
def printed(folder: Folder) -> Printed:
    """A function that draws a figure once, and returns its folder."""

    @cache
    def made(family: str) -> Paths:
        draw(STUDY, folder("all"), family)
        return folder("all")

    return made


PRINTED = ["heatmap", "clipping_curve"]
"""A family of squares and one of lines; slow tests cover all families."""


@pytest.mark.parametrize(
    "family",
    [
        each if each in PRINTED else pytest.param(each, marks=pytest.mark.nightly)
        for each in FAMILIES
    ],
)
def test_files_are_ready_for_print(printed: Printed, family: str) -> None:
    paths = printed(family)
    pdf, png = (paths.figure(family, suffix).read_bytes() for suffix in ("pdf", "png"))
    assert b"/FontFile2" in pdf and b"DejaVuSans" in pdf  # embedded as TrueType
    assert b"/Type3" not in pdf
    assert b"CreationDate" not in pdf
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


def test_the_error_about_an_unknown_figure_lists_existing_ones(tmp_path: Path) -> None:
    with pytest.raises(DpsweepError, match=r'"fig9"; .*allowed: .*clipping_curve'):
        draw(STUDY, Paths(tmp_path), "fig9")


def test_two_lines_of_one_label_are_refused() -> None:
    """They would be drawn as one zigzag."""
    lines = {"clipping_bound": [0.1, 1.0] * 2, "centre": [0.1, 0.2, 0.3, 0.4], "line": [0, 0, 1, 1]}
    ClippingCurve.draw(pd.DataFrame(lines | {"label": [0.3, 0.3, 0.1 + 0.2, 0.1 + 0.2]}))
    with pytest.raises(ValueError, match="found one for several lines"):
        ClippingCurve.draw(pd.DataFrame(lines | {"label": "one"}))
