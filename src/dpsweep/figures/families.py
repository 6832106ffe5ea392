"""Parts of descriptions of figures and tables: the families, and selections of cells."""

from dpsweep.config.selections import Line, LinePanel, Panel, Selection
from dpsweep.study.table_targets import (
    ComparedCells,
    ComparisonTable,
    Datasets,
    HyperparameterGrid,
    OptimizerTable,
    PrintedTable,
    TuningImplications,
)
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
    PrivacyEffectsFigure,
)

__all__ = [
    "AttackerCurves", "ClippingCurve", "ComparedCells", "ComparisonTable", "Datasets",
    "ErrorDecomposition", "Figure", "GradientNormDistribution", "GradientNormHistogram", "Heatmap",
    "HyperparameterGrid", "Line", "LinePanel", "MethodComparison", "NoiseAxes", "NoiseCurve", "NormTrace",
    "OptimalBatchSize", "OptimalClippingTrace", "OptimizerTable", "Panel", "PerClass",
    "PredictedClipping", "PrintedTable", "PrivacyEffectsFigure", "Selection", "TuningImplications",
]  # fmt: skip
