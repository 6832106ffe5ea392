"""Legibility of figures: no text is cut or touches another one."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from tests.figures.legible import illegible
from tests.synthetic import make_study
from tests.whole_study import write_results

from dpsweep.figures import style
from dpsweep.privacy.trade_off import mechanism_trade_off
from dpsweep.study import Study, load_study
from dpsweep.study.paths import Paths

STUDIES = Path(__file__).parents[2] / "studies"
# The paper's grids for SUN397.
PAPER: dict[str, Any] = {
    "epsilon": [0.25, 0.5, 1.0, 2.0, 4.0, 8.0], "batch_size": [64, 128, 256, 512, "full"],
    "clipping_bound": [0.1, 1.0, 10.0, 12.0, 14.0, 18.0, 26.0, 42.0], "seeds": 3,
}  # fmt: skip
THREE = [{"epsilon": epsilon, "title": f"ViT-Base, ε = {epsilon}"} for epsilon in (8.0, 1.0, 0.25)]
LINES = [{"epsilon": 8.0, "label": "ε = 8"}, {"epsilon": 0.25, "label": "ε = 0.25"}]
AT_C = {"clipping_bound": 1.0, "epochs": 8}
MEASURED = {**AT_C, "batch_size": 64}
BACKBONES = ("ViT-Base", "ViT-Tiny")
SIX = [{"epsilon": epsilon, "title": f"ε = {epsilon:g}"} for epsilon in PAPER["epsilon"]]
NOISE = [
    {"title": "By batch size", "quantity": "cumulative_effective", "x": "batch_size"},
    {"title": "By steps", "quantity": "cumulative_effective", "x": "steps"},
]
# Every family at its widest: three or six panels, six lines, long titles.
WIDE: dict[str, dict[str, Any]] = {
    "heatmap": {"panels": THREE, "colour_scale": "panel"},
    "heatmap_shared": {"family": "heatmap", "panels": SIX},
    "heatmap_over_epsilon": {"family": "heatmap", "x": "epsilon", "y": "clipping_bound",
                             "panels": [{"title": "WRN-16-4"}]},
    "clipping_curve": {
        "quantity": "difference",
        "panels": [{"title": "ViT-Tiny", "lines": LINES}, {"title": "ViT-Base", "lines": LINES}],
    },
    "clipping_curve_of_accuracy": {
        "family": "clipping_curve",
        "panels": [{"title": f"ViT-Base, FiLM, {place}", "lines": LINES} for place in range(3)],
    },
    "gradient_norm_distribution": {"panels": [panel | {"clipping_bound": 1.0} for panel in SIX]},
    "gradient_norm_histogram": {"panels": [panel | {"clipping_bound": 1.0} for panel in THREE]},
    "per_class": {"baseline": 1.0,
                  "panels": [panel | {"clipping_bound": [0.1, 1.0, 42.0]} for panel in THREE]},
    "method_comparison": {
        "panels": [
            {"title": f"CIFAR-100 (10%), {place}", "lines": [
                {"label": "AUTO-S", "clipping_bound": "automatic"}, {"label": "Tuned"}]}
            for place in range(3)
        ]
    },
    "noise_curve": {"cells": {"epochs": 8}, "axes": NOISE, "minimum_steps": {"digits_small_film": 20}},
    "noise_curve_of_epochs": {"family": "noise_curve", "cells": {"epochs": "all", "clipping_bound": 1.0},
                              "axes": NOISE},
    "attacker_curves": {"records": [1, 2, 5, 10],
                        "panels": [{**MEASURED, "title": title} for title in (*BACKBONES, "DistilBERT")]},
    "norm_trace": {"panels": [{**AT_C, "title": "8 epochs"}]},
    "optimal_batch_size": {"panels": [{"epochs": "all", "clipping_bound": 1.0, "title": title}
                                      for title in ("CIFAR-100", "SUN397")]},
    "error_decomposition": {"panels": [panel | MEASURED for panel in THREE]},
    "optimal_clipping_trace": {"panels": [{**MEASURED, "title": title} for title in BACKBONES]},
    "privacy_effects": {"panels": [{**MEASURED, "title": title} for title in BACKBONES]},
    "predicted_clipping": {
        "panels": [
            {**MEASURED, "clipping_bound": "all", "title": "Digits"},
            {**MEASURED, "clipping_bound": "automatic", "title": "AUTO-S"},
        ]
    },
}  # fmt: skip


def wide_study() -> Study:
    """Return a study of one problem with twelve classes, the paper's grids, and all families of figures."""
    once = {"epochs": 8}
    figures = {
        name: {"family": name, "caption": "c", "section": name} | settings
        for name, settings in WIDE.items()
    }
    for figure in figures.values():
        if "panels" in figure:
            figure["panels"] = [once | panel for panel in figure["panels"]]
    sweeps = {
        "bounds": PAPER | {"epochs": [8]},
        "automatic": PAPER | {"epochs": [8], "clipping_bound": "automatic"},
        "epochs": PAPER | {"epochs": [2, 4, 8, 16, 32], "clipping_bound": [1.0]},
    }
    return make_study(sweeps, classes=12, train_size=2000, figures=figures)


def wordiest(study: Study) -> dict[str, Any]:
    """Return the figure with the longest description for each section and family."""
    figures = sorted(study.figures.items(), key=lambda item: len(str(item[1])))
    alike = {(figure.section, figure.family): name for name, figure in figures}
    return {name: study.figures[name] for name in alike.values()}


def with_few_trials(study: Study) -> Study:
    """Keep two learning rates and two seeds of each sweep: labels show at most a range of rates."""
    few = {
        name: sweep.model_copy(update={"learning_rate": sweep.learning_rates[:2], "seeds": 2})
        for name, sweep in study.sweeps.items()
    }
    return study.model_copy(update={"sweeps": few})


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["demo", "frozen-features", "wide"])
def test_no_text_touches_another_or_is_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    study = wide_study() if name == "wide" else load_study(STUDIES / f"{name}.yaml")
    study, paths = with_few_trials(study), Paths(tmp_path)
    figures = wordiest(study)
    write_results(study, paths, list(figures.values()), most_examples=500)
    # Curves of full batches have the same labels, and are fast to compute.
    curve = mechanism_trade_off
    monkeypatch.setattr(
        "dpsweep.privacy.trade_off.mechanism_trade_off",
        lambda epsilon, sigma, sampling, *more: curve(
            epsilon, sigma, replace(sampling, batch_size=sampling.units), *more
        ),
    )
    found = {}
    for each, figure in figures.items():
        with style.style():
            drawing = figure.plot(figure.compute(study, paths))
        found[each] = illegible(drawing)
    assert {each: texts for each, texts in found.items() if texts} == {}


def test_touching_and_cut_texts_are_found() -> None:
    drawing = Figure(figsize=(3, 1), dpi=100)
    drawing.text(0.1, 0.5, "10", size=7)
    drawing.text(0.1, 0.2, "apart", size=7)
    assert illegible(drawing) == []
    end = drawing.texts[0].get_window_extent().x1 / 300
    space = 0.32 * 7 / 72 / 3
    drawing.text(end + space, 0.5, "100", size=7)
    drawing.text(0.99, 0.2, "edge", size=7)
    assert illegible(drawing) == ["'edge' is cut", "'10' touches '100'"]
