"""The families of figures: what each draws, and so which cells it needs.

One class a family. A study's file writes targets with roles and words; `dpsweep.study.expand` turns
them into targets of the same classes in which every selection names its cells.
"""

import math
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from dpsweep.study.clipping import RULES
from dpsweep.study.selections import Line, LinePanel, Panel, Selection, Settings
from dpsweep.study.target import Target


class _Overlaps(Target):
    """Drawn from how the gradients of trials overlap (`dpsweep.theory`), which is not private."""

    panels: Annotated[list[Panel], Field(min_length=1)]

    def overlaps(self) -> list[Selection]:
        """The cells of every panel."""
        return list(self.panels)

    def caption_end(self) -> str:
        """Every figure of raw gradients says so."""
        return "Not private: drawn from raw gradients."


class Heatmap(Target):
    """Mean macro accuracy over two axes; whatever is not an axis is tuned. The best cell is marked."""

    title: ClassVar[str] = "Accuracy map"
    tunes: ClassVar[bool] = True
    shows_means: ClassVar[bool] = True

    family: Literal["heatmap"]
    x: Literal["clipping_bound", "epsilon"] = "clipping_bound"
    y: Literal["batch_size", "clipping_bound"] = "batch_size"
    colour_scale: Annotated[
        Literal["shared", "panel"],
        Field(description="one colour scale for all panels, or one for each (from worst to best)"),
    ] = "shared"
    panels: Annotated[list[Panel], Field(min_length=1)]

    @model_validator(mode="after")
    def _two_axes(self) -> Self:
        if self.x == self.y:
            raise ValueError(f"x and y are both {self.x}; allowed: two different axes")
        return self

    def single_axes(self) -> tuple[str, ...]:
        """A panel is one problem, but for what it draws along its axes."""
        return tuple(axis for axis in ("epsilon", "epochs") if axis != self.x)

    def drawn_axes(self) -> tuple[str, ...]:
        """The two axes of the map."""
        return (self.x, self.y)


class ClippingCurve(Target):
    """Accuracy against C with B and learning rate tuned jointly; band from worst to best repeat.

    The lines of a panel are listed from the easy problem to the hard one.
    """

    title: ClassVar[str] = "Accuracy by clipping bound"
    needs_bounds: ClassVar[bool] = True
    ordered: ClassVar[bool] = True
    tunes: ClassVar[bool] = True
    shows_means: ClassVar[bool] = True

    family: Literal["clipping_curve"]
    quantity: Annotated[
        Literal["accuracy", "difference"],
        Field(description="difference: to the best centre of the same line"),
    ] = "accuracy"
    centre: Literal["mean", "median"] = "mean"
    panels: Annotated[list[LinePanel], Field(min_length=1)]

    def single_axes(self) -> tuple[str, ...]:
        """A line is one problem."""
        return ("epsilon", "epochs")

    def drawn_axes(self) -> tuple[str, ...]:
        """The axis below the curve."""
        return ("clipping_bound",)


class GradientNormDistribution(Target):
    """Distribution of per-example gradient norms after every epoch, a panel per problem."""

    title: ClassVar[str] = "Gradient norms by epoch"
    needs_bounds: ClassVar[bool] = True
    tunes: ClassVar[bool] = True

    family: Literal["gradient_norm_distribution"]
    panels: Annotated[list[Panel], Field(min_length=1)]

    def single_axes(self) -> tuple[str, ...]:
        """A panel is one problem and one C."""
        return ("epsilon", "epochs", "clipping_bound")

    def gradient_norms(self) -> list[Selection]:
        """The norms of every panel's (epsilon, epochs, C)."""
        return list(self.panels)


class GradientNormHistogram(Target):
    """Histogram of per-example gradient norms after the last epoch, a panel per problem."""

    title: ClassVar[str] = "Gradient norms after training"
    needs_bounds: ClassVar[bool] = True
    tunes: ClassVar[bool] = True

    family: Literal["gradient_norm_histogram"]
    panels: Annotated[list[Panel], Field(min_length=1)]

    def single_axes(self) -> tuple[str, ...]:
        """A panel is one problem and one C."""
        return ("epsilon", "epochs", "clipping_bound")

    def gradient_norms(self) -> list[Selection]:
        """The norms of every panel's (epsilon, epochs, C)."""
        return list(self.panels)


class PerClass(Target):
    """Per class, ordered from easy to hard: relative retained weight, and accuracy difference.

    Each panel's selection names the clipping bounds that are drawn, the baseline among them.
    """

    title: ClassVar[str] = "Classes: retained weight and accuracy"
    needs_bounds: ClassVar[bool] = True
    tunes: ClassVar[bool] = True

    family: Literal["per_class"]
    baseline: Annotated[
        float,
        Field(
            gt=0,
            description="the C that the others are compared with; by default what the word baseline "
            "stands for",
        ),
    ] = 1.0
    rows: Annotated[
        list[Literal["retained_weight", "accuracy_difference"]], Field(min_length=1)
    ] = ["retained_weight", "accuracy_difference"]
    retained_weight_of: Annotated[
        Literal["trainable", "classifier"],
        Field(
            description="whose gradient norms the retained weight is made of: those of all trainable "
            "parameters, which are clipped, or of the classifier alone"
        ),
    ] = "trainable"
    panels: Annotated[list[Panel], Field(min_length=1)]

    def single_axes(self) -> tuple[str, ...]:
        """A panel is one problem."""
        return ("epsilon", "epochs")

    def drawn_axes(self) -> tuple[str, ...]:
        """A line each."""
        return ("clipping_bound",)

    def selections(self) -> list[Selection]:
        """Every panel, and its cells at the baseline, whether or not the panel names them."""
        return [each for panel in self.panels for each in (panel, self.at_baseline(panel))]

    def at_baseline(self, panel: Selection) -> Selection:
        """The cells of a panel at the baseline C."""
        return panel.model_copy(update={"clipping_bound": self.baseline})

    def gradient_norms(self) -> list[Selection]:
        """The norms of every drawn (epsilon, epochs, C), where retained weight is a row."""
        return self.selections() if "retained_weight" in self.rows else []


class MethodComparison(Target):
    """Accuracy against epsilon, as a difference to the best line; everything else is tuned."""

    title: ClassVar[str] = "Methods by ε"
    tunes: ClassVar[bool] = True
    shows_means: ClassVar[bool] = True

    family: Literal["method_comparison"]
    panels: Annotated[list[LinePanel], Field(min_length=1)]

    def single_axes(self) -> tuple[str, ...]:
        """A line is one problem."""
        return ("epochs",)

    def drawn_axes(self) -> tuple[str, ...]:
        """The axis below the curve."""
        return ("epsilon",)


class NoiseAxes(Settings):
    """One axes of a noise figure."""

    title: str
    quantity: Annotated[
        Literal["effective", "cumulative", "cumulative_effective"],
        Field(description="sigma/B, sigma*sqrt(T), sigma*sqrt(T)/B"),
    ]
    x: Literal["batch_size", "steps"]


class NoiseCurve(Target):
    """Noise against B or T, coloured by accuracy minus the best at that (epsilon, epochs)."""

    title: ClassVar[str] = "Noise and accuracy"
    part: ClassVar[str] = "cells"
    tunes: ClassVar[bool] = True
    shows_means: ClassVar[bool] = True
    tuning_note: ClassVar[str] = (
        "The figure names the range of what was chosen, the CSV has it for every point."
    )

    family: Literal["noise_curve"]
    cells: Selection = Selection()
    axes: Annotated[list[NoiseAxes], Field(min_length=1)]
    minimum_steps: Annotated[
        dict[str, PositiveInt],
        Field(
            description="the fewest steps that suffice according to a paper, by problem "
            "(<dataset>_<backbone>_<method>): a vertical line where x is steps and that problem is drawn"
        ),
    ] = {}

    def leaves(self) -> list[Selection]:
        """The one selection behind all axes."""
        return [self.cells]

    def drawn_axes(self) -> tuple[str, ...]:
        """B and T change together."""
        return ("batch_size",)

    @property
    def marked_steps(self) -> int | None:
        """Where the vertical line is: a paper's number holds for no other problem than its own."""
        if all(axes.x != "steps" for axes in self.axes):
            return None
        return self.minimum_steps.get(self.cells.problem.name)

    def caption_end(self) -> str:
        """Explain the vertical line, where there is one."""
        steps = self.marked_steps
        if steps is None:
            return ""
        return f"The vertical line is at {steps} steps, the fewest that suffice according to the paper."


class NormTrace(Target):
    """Mean per-example gradient norm at every optimizer step, a line per epsilon."""

    title: ClassVar[str] = "Mean gradient norm by step"
    tunes: ClassVar[bool] = True

    family: Literal["norm_trace"]
    panels: Annotated[list[Panel], Field(min_length=1)]

    def single_axes(self) -> tuple[str, ...]:
        """The lines of a panel differ in epsilon; B and C, where there are several, are tuned."""
        return ("epochs",)


class OptimalBatchSize(Target):
    """The mean over repeats of the best batch size against epochs, a line per epsilon."""

    title: ClassVar[str] = "Best batch size by epochs"
    tunes: ClassVar[bool] = True

    family: Literal["optimal_batch_size"]
    panels: Annotated[list[Panel], Field(min_length=1)]

    def drawn_axes(self) -> tuple[str, ...]:
        """The two axes of the figure."""
        return ("epochs", "batch_size")


class ErrorDecomposition(_Overlaps):
    """MSE(C) of Theorem 4.1 split into bias and noise, at the start and at the end of training."""

    title: ClassVar[str] = "Error of a private gradient"
    family: Literal["error_decomposition"]

    def single_axes(self) -> tuple[str, ...]:
        """A panel is one cell."""
        return ("epsilon", "epochs", "batch_size", "clipping_bound")


class OptimalClippingTrace(_Overlaps):
    """C* of Theorem 4.1 and the median gradient norm after every epoch, a line per epsilon."""

    title: ClassVar[str] = "Best clipping bound by the theory"
    family: Literal["optimal_clipping_trace"]

    def single_axes(self) -> tuple[str, ...]:
        """The lines of a panel differ in epsilon alone."""
        return ("epochs", "batch_size", "clipping_bound")


class PrivacyEffectsFigure(_Overlaps):
    """Best C over epsilon: of its noise alone, of the gradients that it leads to alone, and of both."""

    title: ClassVar[str] = "Effects of ε on the best clipping bound"
    family: Literal["privacy_effects"]

    def single_axes(self) -> tuple[str, ...]:
        """The points of a panel differ in epsilon alone."""
        return ("epochs", "batch_size", "clipping_bound")

    def drawn_axes(self) -> tuple[str, ...]:
        """The axis below the curve."""
        return ("epsilon",)


class PredictedClipping(_Overlaps):
    """Best C as the theory predicts it, beside the measured one, over all problems of the panels.

    Gradients are those of the trial whose C is the nearest to 1. A panel with a clipping rule without a
    bound, such as AUTO-S, is that rule for the problems of the other panels.
    """

    title: ClassVar[str] = "Predicted and measured clipping bounds"
    family: Literal["predicted_clipping"]

    def single_axes(self) -> tuple[str, ...]:
        """A point is one problem at one epsilon and batch size; C and the learning rate are tuned."""
        return ("epochs",)

    def drawn_axes(self) -> tuple[str, ...]:
        """Of these one is the best."""
        return ("clipping_bound",)

    def overlaps(self) -> list[Selection]:
        """The cells of every problem at the C nearest to 1."""
        return [
            panel.model_copy(update={"clipping_bound": nearest_to_one(panel)})
            for panel in self.panels
            if panel.is_complete and named_rule(panel) is None
        ]


def named_rule(selection: Selection) -> str | None:
    """The clipping rule of a selection, if it is one without a bound; None with bounds."""
    first = next(iter(selection.values("clipping_bound")), None)
    return first if isinstance(first, str) and first in RULES else None


def nearest_to_one(selection: Selection) -> float:
    """The clipping bound of a selection that is nearest to 1, of two the smaller."""
    bounds = [bound for bound in selection.values("clipping_bound") if not isinstance(bound, str)]
    nearest: float = min(bounds, key=lambda bound: (abs(math.log(bound)), bound))
    return nearest


Figure = Annotated[
    Heatmap
    | ClippingCurve
    | GradientNormDistribution
    | GradientNormHistogram
    | PerClass
    | MethodComparison
    | NoiseCurve
    | NormTrace
    | OptimalBatchSize
    | ErrorDecomposition
    | OptimalClippingTrace
    | PrivacyEffectsFigure
    | PredictedClipping,
    Field(discriminator="family"),
]


__all__ = [
    "Figure",
    "Line",
    "LinePanel",
    "Panel",
    "Selection",
]
