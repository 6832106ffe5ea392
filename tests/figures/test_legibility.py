"""What was once wrong in a figure for the eye: labels that collide or are cut, axes that say too little."""

import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from tests.figures.test_draw import FAMILIES, STUDY, outcome, write_norms
from tests.synthetic import make_study, write_cells, write_dataset, write_gradient_norms

from dpsweep.figures import style
from dpsweep.figures.draw import FAMILIES as PLOTS
from dpsweep.study import Study
from dpsweep.study.paths import Paths

# The paper's grids for SUN397.
PAPER = {
    "epsilon": [0.25, 0.5, 1.0, 2.0, 4.0, 8.0], "batch_size": [64, 128, 256, 512, "full"],
    "clipping_bound": [0.1, 1.0, 10.0, 12.0, 14.0, 18.0, 26.0, 42.0], "seeds": 3,
}  # fmt: skip
THREE = [{"epsilon": epsilon, "title": f"ViT-Base, ε = {epsilon}"} for epsilon in (8.0, 1.0, 0.25)]
LINES = [{"epsilon": 8.0, "label": "ε = 8"}, {"epsilon": 0.25, "label": "ε = 0.25"}]
LARGE: dict[str, dict[str, Any]] = {
    "heatmap": {"panels": THREE, "colour_scale": "panel"},
    "clipping_curve": {
        "quantity": "difference",
        "panels": [{"title": "ViT-Tiny", "lines": LINES}, {"title": "ViT-Base", "lines": LINES}],
    },
    "per_class": {"baseline": 1.0, "rows": ["accuracy_difference"],
                  "panels": [panel | {"clipping_bound": [0.1, 1.0, 42.0]} for panel in THREE]},
    "noise_curve": {"cells": {"epsilon": "all"},
                    "axes": [{"title": "One step", "quantity": "effective", "x": "batch_size"}]},
}  # fmt: skip


def draw(study: Study, folder: Path, name: str) -> Figure:
    figure = study.figures[name]
    compute, plot = PLOTS[figure.family]
    with style.style():
        return plot(figure, compute(study, Paths(folder), figure))


def texts(drawing: Figure, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Bbox]]:
    """Every text that is drawn, and where: pixels at 100 dots per inch."""
    drawn: dict[int, tuple[str, Bbox]] = {}
    original = Text.draw

    def record(self: Text, renderer: Any, *args: Any, **kwargs: Any) -> Any:
        if self.get_visible() and self.get_text().strip():
            drawn[id(self)] = self.get_text(), self.get_window_extent(renderer)
        return original(self, renderer, *args, **kwargs)

    monkeypatch.setattr(Text, "draw", record)
    with style.style():
        drawing.savefig(io.BytesIO(), dpi=100, bbox_inches=None)
    return list(drawn.values())


def assert_legible(drawing: Figure, monkeypatch: pytest.MonkeyPatch) -> None:
    drawing.set_dpi(100)
    found = texts(drawing, monkeypatch)
    assert len(found) > 5
    width, height = drawing.get_size_inches() * 100
    cut = [text for text, box in found
           if box.x0 < -1 or box.y0 < -1 or box.x1 > width + 1 or box.y1 > height + 1]  # fmt: skip
    assert not cut
    # Letters end before their boxes do: a pixel and a half is no collision.
    collisions = [
        (one, other)
        for (one, first), (other, second) in itertools.combinations(found, 2)
        if min(first.x1, second.x1) - max(first.x0, second.x0) > 1.5
        and min(first.y1, second.y1) - max(first.y0, second.y0) > 1.5
    ]
    assert not collisions


@pytest.mark.parametrize("family", FAMILIES)
def test_no_text_lies_on_another_or_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    paths = Paths(tmp_path)
    write_cells(STUDY, paths, outcome, steps_too=True)
    write_norms(paths)
    write_dataset(paths, "digits", [250] * 4)
    assert_legible(draw(STUDY, tmp_path, family), monkeypatch)


@pytest.mark.parametrize("family", LARGE)
def test_the_papers_grids_are_legible_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    made = {"family": family, "caption": "c", "section": "s"} | LARGE[family]
    study = make_study({"s": PAPER}, figures={"large": made})
    write_cells(study, Paths(tmp_path), outcome)
    write_dataset(Paths(tmp_path), "digits", [250] * 4)
    assert_legible(draw(study, tmp_path, "large"), monkeypatch)


def test_six_panels_stand_side_by_side(tmp_path: Path) -> None:
    panels = [
        {"epsilon": e, "clipping_bound": 1.0, "title": f"ε = {e:g}"} for e in PAPER["epsilon"]
    ]  # type: ignore[attr-defined]
    made = {
        "family": "gradient_norm_distribution", "caption": "c", "section": "s", "panels": panels,
    }  # fmt: skip
    study, paths = make_study({"s": PAPER}, figures={"norms": made}), Paths(tmp_path)
    write_cells(study, paths, outcome)
    random = np.random.default_rng(0)
    for cell in study.all_cells():
        if cell.batch_size == 64 and cell.clipping_bound == 1:
            norms = [(np.arange(100) % 4, random.lognormal(size=100))] * cell.epochs
            write_gradient_norms(study, paths, cell, 0.01, norms)
    drawing = draw(study, tmp_path, "norms")
    drawing.draw_without_rendering()
    places = [axes.get_position() for axes in drawing.axes[:6]]
    assert len({round(place.y0, 3) for place in places}) == 1
    assert [place.x0 for place in places] == sorted(place.x0 for place in places)


# Both axes of predicted_clipping are the same C; their ticks say how they are spaced.
@pytest.mark.parametrize("family", [each for each in FAMILIES if each != "predicted_clipping"])
def test_logarithmic_axes_are_named(tmp_path: Path, family: str) -> None:
    paths = Paths(tmp_path)
    write_cells(STUDY, paths, outcome, steps_too=True)
    write_norms(paths)
    write_dataset(paths, "digits", [250] * 4)
    drawing = draw(STUDY, tmp_path, family)
    strips = {"B", "η", "C"}  # their ticks are the values that were chosen
    labels = [
        axis.get_label_text()
        for axes in drawing.axes
        for axis in (axes.xaxis, axes.yaxis)
        if axis.get_scale() == "log" and axis.get_label_text() not in strips
    ]
    assert all("(log scale)" in label for label in labels if label), labels


def test_the_privacy_budget_has_one_name(tmp_path: Path) -> None:
    made = {"family": "heatmap", "caption": "c", "section": "s", "x": "epsilon", "y": "clipping_bound",
            "panels": [{"title": "Digits"}]}  # fmt: skip
    study = make_study({"s": PAPER}, figures={"over": made})
    write_cells(study, Paths(tmp_path), outcome)
    drawing = draw(study, tmp_path, "over")
    assert drawing.axes[0].get_xlabel().startswith(style.EPSILON_LABEL)
