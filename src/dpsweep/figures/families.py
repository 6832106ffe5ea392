"""The classes of figures and tables, and their parts."""

from dpsweep.figures.accuracy_lines import ClippingCurve, MethodComparison, OptimalBatchSize
from dpsweep.figures.accuracy_map import Heatmap
from dpsweep.figures.attackers import AttackerCurves
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
from dpsweep.figures.noise import NoiseAxes, NoiseCurve
from dpsweep.study.grid import Line, LinePanel, Panel, Selection
from dpsweep.study.targets import Figure, PrintedTable
from dpsweep.tables.comparison import ComparisonTable
from dpsweep.tables.inputs import Datasets, HyperparameterGrid
from dpsweep.tables.optimizers import OptimizerTable
from dpsweep.tables.tuning_implications import TuningImplications

__all__ = [
    "AttackerCurves", "ClippingCurve", "ComparisonTable", "Datasets",
    "ErrorDecomposition", "Figure", "GradientNormDistribution", "GradientNormHistogram", "Heatmap",
    "HyperparameterGrid", "Line", "LinePanel", "MethodComparison", "NoiseAxes", "NoiseCurve", "NormTrace",
    "OptimalBatchSize", "OptimalClippingTrace", "OptimizerTable", "Panel", "PerClass",
    "PredictedClipping", "PrintedTable", "PrivacyEffectsFigure", "Selection", "TuningImplications",
]  # fmt: skip
