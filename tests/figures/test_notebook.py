"""Figures of any frame, as drawn in a notebook."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from tests.described import by_name
from tests.figures.test_draw import FAMILIES, STUDY

from dpsweep.figures import families
from dpsweep.study.paths import Paths

NEEDED = {
    "heatmap": "clipping_bound batch_size macro_accuracy",
    "clipping_curve": "clipping_bound centre",
    "gradient_norm_distribution": "epoch quantity norm value clipping_bound",
    "gradient_norm_histogram": "lower upper share share_above_bound clipping_bound",
    "per_class": "class class_name class_rank clipping_bound relative_retained_weight accuracy_difference",
    "method_comparison": "epsilon label centre",
    "noise_curve": "axes epsilon epochs batch_size steps noise accuracy_difference",
    "attacker_curves": "epsilon false_positive_rate true_positive_rate records",
    "norm_trace": "epsilon step mean_gradient_norm",
    "optimal_batch_size": "epsilon epochs mean_batch_size train_size",
    "error_decomposition": "epoch clipping_bound bias noise error best_bound",
    "optimal_clipping_trace": "epsilon epoch best_bound median_norm",
    "privacy_effects": "rule effect epsilon best_bound",
    "predicted_clipping": "rule epsilon predicted measured mean_lost settings",
}


@pytest.fixture(scope="module")
def frames(results: Path) -> dict[str, pd.DataFrame]:
    """A frame of one panel with the required columns, by family."""
    found = {}
    for family, columns in NEEDED.items():
        numbers = STUDY.figures[family].compute(STUDY, Paths(results))
        parts = ["panel"] if family == "method_comparison" else ["panel", "line"]
        for part in set(parts) & {*numbers}:
            numbers = numbers[numbers[part] == 0]
        found[family] = numbers[columns.split()].reset_index(drop=True)
    return found


def drawn(family: str, frame: pd.DataFrame) -> Figure:
    axes = [families.NoiseAxes(title="t", quantity="cumulative", x="steps")]
    options: dict[str, Any] = {"axes": axes} if family == "noise_curve" else {}
    figure: Figure = by_name(family).draw(frame, **options)
    figure.draw_without_rendering()
    return figure


@pytest.mark.parametrize("family", FAMILIES)
def test_the_required_columns_of_the_docstring_are_enough(
    frames: dict[str, pd.DataFrame], family: str
) -> None:
    found = [str(each.get_text()) for each in drawn(family, frames[family]).findobj(Text)]  # type: ignore[attr-defined]
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
            drawn(family, other)
