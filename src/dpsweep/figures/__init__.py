"""Figures and tables of a study: functions that describe them, their classes and parts, and their drawing.

`draw` writes a figure of a study. ``Heatmap.draw(frame)`` and its like draw any frame in a notebook; the
docstring of a class has the columns. Drawing code is imported on first use, because every job of a study
imports the descriptions.
"""

from dpsweep.base.lazy import submodules

# Before the classes, which take the drawing code from here.
__getattr__ = submodules(__name__, "style")

from dpsweep.figures.accuracy_lines import ClippingCurve, MethodComparison, OptimalBatchSize
from dpsweep.figures.accuracy_map import Heatmap
from dpsweep.figures.classes import PerClass
from dpsweep.figures.clipping_theory import (
    ErrorDecomposition,
    OptimalClippingTrace,
    PredictedClipping,
    PrivacyEffectsFigure,
)
from dpsweep.figures.gradient_norms import (
    GradientNormDistribution,
    GradientNormHistogram,
    NormTrace,
)
from dpsweep.figures.privacy import AttackerCurves, NoiseAxes, NoiseCurve
from dpsweep.study import Paths, Study
from dpsweep.study.grid import Line, LinePanel, Panel, Selection
from dpsweep.study.targets import Figure, PrintedTable, figure, table
from dpsweep.tables.compared_grids import OptimizerTable, TuningImplications
from dpsweep.tables.comparison import ComparisonTable
from dpsweep.tables.inputs import Datasets, HyperparameterGrid

__all__ = [
    "AttackerCurves", "ClippingCurve", "ComparisonTable", "Datasets",
    "ErrorDecomposition", "Figure", "GradientNormDistribution", "GradientNormHistogram", "Heatmap",
    "HyperparameterGrid", "Line", "LinePanel", "MethodComparison", "NoiseAxes", "NoiseCurve", "NormTrace",
    "OptimalBatchSize", "OptimalClippingTrace", "OptimizerTable", "Panel", "PerClass",
    "PredictedClipping", "PrintedTable", "PrivacyEffectsFigure", "Selection", "TuningImplications",
    "draw", "figure", "table",
]  # fmt: skip


def draw(study: Study, paths: Paths, target: str) -> None:
    """Write the files of a figure; see `dpsweep.figures.style.draw`."""
    __getattr__("style").draw(study, paths, target)
