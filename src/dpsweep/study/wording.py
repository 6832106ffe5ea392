"""What captions say about how things were chosen; the rule itself is `dpsweep.choice`."""

from dpsweep.study.config import Study
from dpsweep.study.table_targets import Comparison, Table
from dpsweep.study.targets import (
    ClippingCurve,
    Figure,
    GradientNormDistribution,
    GradientNormHistogram,
    Heatmap,
    MethodComparison,
    NoiseCurve,
    NormTrace,
    OptimalBatchSize,
    PerClass,
)

_OF_CHOICES = (
    ClippingCurve | Comparison | GradientNormDistribution | GradientNormHistogram | Heatmap
    | MethodComparison | NoiseCurve | NormTrace | OptimalBatchSize | PerClass
)  # fmt: skip
_OF_MEAN_ACCURACIES = ClippingCurve | Comparison | Heatmap | MethodComparison | NoiseCurve


def how_chosen(study: Study, target: Figure | Table) -> str:
    """One or two sentences for the end of a caption; empty where nothing was chosen."""
    where = "the test set" if study.training.select_on == "test" else "held-out training examples"
    said = []
    if isinstance(target, _OF_CHOICES):
        said.append(
            f"What is tuned was chosen by mean accuracy over all seeds on {where} (learning rates: "
            "first seed)."
        )
    if isinstance(target, _OF_MEAN_ACCURACIES):
        said.append(
            "Accuracies are means over the seeds that chose, and so optimistic; the CSV has beside "
            "them (cross_fitted) what seeds measured that did not choose."
        )
    if isinstance(target, NoiseCurve):
        said.append(
            "C and the learning rate were chosen for every point: the figure names their range, the "
            "CSV has those of each."
        )
    return " ".join(said)
