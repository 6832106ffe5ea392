"""Descriptions of figures and tables (`figure`, `table`, `families`), and functions that draw them.

`draw` writes a figure of a study. Functions such as ``heatmap(frame)`` draw a family from any frame
(`dpsweep.figures.notebook`). Drawing code is imported on first use, because every job of a study imports
the descriptions.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpsweep.study.descriptions import figure, table

if TYPE_CHECKING:
    from dpsweep.figures.drawing import draw
    from dpsweep.figures.notebook import (
        attacker_curves,
        clipping_curve,
        error_decomposition,
        gradient_norm_distribution,
        gradient_norm_histogram,
        heatmap,
        method_comparison,
        noise_curve,
        norm_trace,
        optimal_batch_size,
        optimal_clipping_trace,
        per_class,
        predicted_clipping,
        privacy_effects,
    )

__all__ = [
    "attacker_curves", "clipping_curve", "draw", "error_decomposition", "figure",
    "gradient_norm_distribution", "gradient_norm_histogram", "heatmap", "method_comparison", "noise_curve",
    "norm_trace", "optimal_batch_size", "optimal_clipping_trace", "per_class", "predicted_clipping",
    "privacy_effects", "table",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "drawing" if name == "draw" else "notebook"
    return getattr(import_module(f"dpsweep.figures.{module}"), name)
