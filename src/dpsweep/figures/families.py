"""Parts of descriptions of figures and tables: the families, and selections of cells."""

from dpsweep.config.selections import Line, LinePanel, Panel, Selection
from dpsweep.study.targets import (
    AttackerCurves,
    ClippingCurve,
    ErrorDecomposition,
    Figure,
    GradientNormDistribution,
    GradientNormHistogram,
    Heatmap,
    MethodComparison,
    NoiseAxes,
    NoiseCurve,
    NormTrace,
    OptimalBatchSize,
    OptimalClippingTrace,
    PerClass,
    PredictedClipping,
    PrintedTable,
    PrivacyEffectsFigure,
)
from dpsweep.tables.comparison import ComparedCells, ComparisonTable
from dpsweep.tables.inputs import Datasets, HyperparameterGrid
from dpsweep.tables.optimizers import OptimizerTable
from dpsweep.tables.tuning_implications import TuningImplications

__all__ = [
    "AttackerCurves", "ClippingCurve", "ComparedCells", "ComparisonTable", "Datasets",
    "ErrorDecomposition", "Figure", "GradientNormDistribution", "GradientNormHistogram", "Heatmap",
    "HyperparameterGrid", "Line", "LinePanel", "MethodComparison", "NoiseAxes", "NoiseCurve", "NormTrace",
    "OptimalBatchSize", "OptimalClippingTrace", "OptimizerTable", "Panel", "PerClass",
    "PredictedClipping", "PrintedTable", "PrivacyEffectsFigure", "Selection", "TuningImplications",
]  # fmt: skip
