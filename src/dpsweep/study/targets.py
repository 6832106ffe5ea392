"""The families of figures: what each draws, and so which cells it needs.

One class a family. A function describes a figure with roles and words (`dpsweep.figures.paper`);
`dpsweep.study.drawn` turns it into one of the same class in which every selection names its cells. These
classes import nothing that draws: each job of a study reads them.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from dpsweep.config.clipping import RULES, nearest_to_one
from dpsweep.config.selections import Line, LinePanel, Panel, Selection, Settings

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas as pd

    from dpsweep.study.paths import Paths
    from dpsweep.study.study import Study

Panels = Annotated[list[Panel], Field(min_length=1)]
LinePanels = Annotated[list[LinePanel], Field(min_length=1)]


class Target(Settings):
    """A figure or a table of a study."""

    title: ClassVar[str]
    """The heading of the family's targets."""
    family: ClassVar[str]
    """The name of the family."""
    part: ClassVar[str] = "panels"
    """The key of the target's selections."""
    needs_bounds: ClassVar[bool] = False
    """Whether the target draws C, which AUTO-S and training without clipping do not have."""
    ordered: ClassVar[bool] = False
    """Whether the lines of a panel are listed from the easy problem to the hard one."""
    tunes: ClassVar[bool] = False
    """Whether settings are chosen by accuracy for what is drawn; the caption then says how."""
    shows_means: ClassVar[bool] = False
    """Whether accuracies are means over the seeds that chose; the caption then says what that means."""
    marks: ClassVar[tuple[str, str]] = ("", "")
    """The squares that are marked as good as the best, and the set they are among, for the caption."""
    tuning_note: ClassVar[str] = ""
    """Further words of the caption on how settings were chosen."""
    single: ClassVar[tuple[str, ...]] = ()
    """Axes of which each selection must have one value, where they are not drawn: a line is one problem."""
    drawn: ClassVar[tuple[str, ...]] = ()
    """Axes of which each selection must have two values or more: a curve runs along them."""

    section: str = ""
    """heading of the report that it appears under: that of its function (`figure`, `table`)"""
    caption: Annotated[str, Field(min_length=1)]
    """in the report; {dataset}, {epochs}, {seeds} and others stand for what is drawn
    (dpsweep.study.captions)"""

    def selections(self) -> list[Selection]:
        """Every selection of the target."""
        return self.leaves()

    def parts(self) -> list[Any]:
        """The panels, entries or cells of the target; none of a table that selects no cells."""
        parts = getattr(self, self.part, [])
        return parts if isinstance(parts, list) else [parts]

    def leaves(self) -> list[Selection]:
        """The parts that select cells, in the order of the file."""
        return [
            leaf
            for part in self.parts()
            for leaf in (part.lines if isinstance(part, LinePanel) else [part])
        ]

    def gradient_norms(self) -> list[Selection]:
        """Selections whose gradient norms the target draws (all batch sizes compete)."""
        return []

    def overlaps(self) -> list[Selection]:
        """Selections of cells of whose best trials the target draws how the gradients overlap."""
        return []

    def single_axes(self) -> tuple[str, ...]:
        """Axes of which each selection must have one value: whatever else it has several of is tuned."""
        return tuple(axis for axis in self.single if axis not in self.drawn_axes())

    def drawn_axes(self) -> tuple[str, ...]:
        """Axes of which each selection must have two values or more: they are what is drawn."""
        return self.drawn

    def caption_end(self) -> str:
        """End of the caption, once the selections have names and values."""
        return ""


class Figure(Target):
    """A figure. A family of your own has its numbers from ``compute``, and draws them in ``plot``."""

    module: ClassVar[str] = ""
    """The module that draws the family, by its functions ``compute_<family>`` and ``plot_<family>``."""

    def compute(
        self, study: "Study", paths: "Paths", missing: list[Path] | None = None
    ) -> "pd.DataFrame":
        """Read results, and return the rows of the figure's CSV; none where nothing is there yet.

        Args:
            study: the study that has the figure.
            paths: where its results lie.
            missing: absent files are added to it and left out. Where it is None, they are an error.

        Raises:
            MissingResultsError: a file is absent, and ``missing`` is None.
            UnreadableResultsError: a file does not hold what it should.
        """
        found: pd.DataFrame = self._function("compute")(study, paths, self, missing)
        return found

    def plot(self, numbers: "pd.DataFrame") -> "matplotlib.figure.Figure":
        """Draw the numbers of `compute`, and nothing else."""
        drawing: matplotlib.figure.Figure = self._function("plot")(self, numbers)
        return drawing

    def _function(self, does: str) -> Any:
        return getattr(import_module(self.module), f"{does}_{self.family}")


class _Overlaps(Figure):
    """Drawn from how the gradients of trials overlap (`dpsweep.theory`), which is not private."""

    panels: Panels

    def overlaps(self) -> list[Selection]:
        """The cells of every panel."""
        return list(self.panels)

    def caption_end(self) -> str:
        """Every figure of raw gradients says so."""
        return "Not private: drawn from raw gradients."


class Heatmap(Figure):
    """Mean macro accuracy over two axes; whatever is not an axis is tuned.

    Squares that are as good as the best of their panel are framed (`dpsweep.analysis.scatter`).
    """

    family = "heatmap"
    module = "dpsweep.figures.accuracy_map"
    title = "Accuracy map"
    tunes = True
    shows_means = True
    marks = ("framed square", "panel")
    single = ("epsilon", "epochs")

    x: Literal["clipping_bound", "epsilon"] = "clipping_bound"
    y: Literal["batch_size", "clipping_bound"] = "batch_size"
    colour_scale: Literal["shared", "panel"] = "shared"
    """one colour scale for all panels, or one for each (from worst to best)"""
    panels: Panels

    @model_validator(mode="after")
    def _two_axes(self) -> Self:
        if self.x == self.y:
            raise ValueError(f"x and y are both {self.x}; allowed: two different axes")
        return self

    def drawn_axes(self) -> tuple[str, ...]:
        """The two axes of the map."""
        return (self.x, self.y)


class ClippingCurve(Figure):
    """Accuracy against C with B and learning rate tuned jointly; band from worst to best repeat.

    The lines of a panel are listed from the easy problem to the hard one. Points that are as good as the best
    of their line are ringed (`dpsweep.analysis.scatter`).
    """

    family = "clipping_curve"
    module = "dpsweep.figures.accuracy_lines"
    title = "Accuracy by clipping bound"
    needs_bounds = True
    ordered = True
    tunes = True
    shows_means = True
    marks = ("ringed point", "line")
    single = ("epsilon", "epochs")
    drawn = ("clipping_bound",)

    quantity: Literal["accuracy", "difference"] = "accuracy"
    """difference: to the best centre of the same line"""
    centre: Literal["mean", "median"] = "mean"
    panels: LinePanels


class _GradientNorms(Figure):
    """Drawn from per-example gradient norms at the best batch size, a panel for each problem."""

    needs_bounds = True
    tunes = True
    single = ("epsilon", "epochs", "clipping_bound")

    panels: Panels

    def gradient_norms(self) -> list[Selection]:
        """The norms of every panel's (epsilon, epochs, C)."""
        return list(self.panels)


class GradientNormDistribution(_GradientNorms):
    """Distribution of per-example gradient norms after every epoch, a panel per problem."""

    family = "gradient_norm_distribution"
    module = "dpsweep.figures.gradient_norms"
    title = "Gradient norms by epoch"


class GradientNormHistogram(_GradientNorms):
    """Histogram of per-example gradient norms after the last epoch, a panel per problem."""

    family = "gradient_norm_histogram"
    module = "dpsweep.figures.gradient_norms"
    title = "Gradient norms after training"


class PerClass(Figure):
    """Per class, ordered from easy to hard: relative retained weight, and accuracy difference.

    Each panel's selection names the clipping bounds that are drawn, the baseline among them.
    """

    family = "per_class"
    module = "dpsweep.figures.classes"
    title = "Classes: retained weight and accuracy"
    needs_bounds = True
    tunes = True
    single = ("epsilon", "epochs")
    drawn = ("clipping_bound",)

    baseline: Annotated[float, Field(gt=0)] = 1.0
    """the C that the others are compared with; by default what the word baseline stands for"""
    rows: Annotated[
        list[Literal["retained_weight", "accuracy_difference"]], Field(min_length=1)
    ] = ["retained_weight", "accuracy_difference"]
    retained_weight_of: Literal["trainable", "classifier"] = "trainable"
    """whose gradient norms the retained weight is made of: those of all trainable parameters, which
    are clipped, or of the classifier alone"""
    panels: Panels

    def selections(self) -> list[Selection]:
        """Every panel, and its cells at the baseline, whether or not the panel names them."""
        return [each for panel in self.panels for each in (panel, self.at_baseline(panel))]

    def at_baseline(self, panel: Selection) -> Selection:
        """The cells of a panel at the baseline C."""
        return panel.model_copy(update={"clipping_bound": self.baseline})

    def gradient_norms(self) -> list[Selection]:
        """The norms of every drawn (epsilon, epochs, C), where retained weight is a row."""
        return self.selections() if "retained_weight" in self.rows else []


class MethodComparison(Figure):
    """Accuracy against epsilon, as a difference to the best line; everything else is tuned."""

    family = "method_comparison"
    module = "dpsweep.figures.accuracy_lines"
    title = "Methods by ε"
    tunes = True
    shows_means = True
    single = ("epochs",)
    drawn = ("epsilon",)

    panels: LinePanels


class NoiseAxes(Settings):
    """One axes of a noise figure."""

    title: str
    quantity: Literal["effective", "cumulative", "cumulative_effective"]
    """sigma/B, sigma*sqrt(T), sigma*sqrt(T)/B"""
    x: Literal["batch_size", "steps"]


class NoiseCurve(Figure):
    """Noise against B or T, coloured by accuracy minus the best at that (epsilon, epochs)."""

    family = "noise_curve"
    module = "dpsweep.figures.noise"
    title = "Noise and accuracy"
    part = "cells"
    tunes = True
    shows_means = True
    tuning_note = "The figure names the range of what was chosen, the CSV has it for every point."
    drawn = ("batch_size",)

    cells: Selection = Selection()
    axes: Annotated[list[NoiseAxes], Field(min_length=1)]
    minimum_steps: dict[str, PositiveInt] = {}
    """the fewest steps that suffice according to a paper, by problem
    (<dataset>_<backbone>_<method>): a vertical line where x is steps and that problem is drawn"""

    @property
    def marked_steps(self) -> int | None:
        """Return the steps at the vertical line; a paper's number holds for its own problem only."""
        if all(axes.x != "steps" for axes in self.axes):
            return None
        return self.minimum_steps.get(self.cells.problem.name)

    def caption_end(self) -> str:
        """Explain the vertical line, where there is one."""
        steps = self.marked_steps
        if steps is None:
            return ""
        return f"The vertical line is at {steps} steps, the fewest that suffice according to the paper."


class AttackerCurves(Figure):
    """How many present people the best attacker recognises, by how many absent ones they accuse.

    A line per epsilon, from noise, sampling rate and steps: of training, and of nothing that it led to.
    """

    family = "attacker_curves"
    module = "dpsweep.figures.attackers"
    title = "What an attacker can tell"
    single = ("epochs", "batch_size")

    records: Annotated[list[PositiveInt], Field(min_length=1)] = [1]
    """how many records one person has; a line for each"""
    panels: Panels


class NormTrace(Figure):
    """Mean per-example gradient norm at every optimizer step, a line per epsilon."""

    family = "norm_trace"
    module = "dpsweep.figures.gradient_norms"
    title = "Mean gradient norm by step"
    tunes = True
    single = ("epochs",)

    panels: Panels


class OptimalBatchSize(Figure):
    """The mean over repeats of the best batch size against epochs, a line per epsilon."""

    family = "optimal_batch_size"
    module = "dpsweep.figures.accuracy_lines"
    title = "Best batch size by epochs"
    tunes = True
    drawn = ("epochs", "batch_size")

    panels: Panels


class ErrorDecomposition(_Overlaps):
    """MSE(C) of Theorem 4.1 split into bias and noise, at the start and at the end of training."""

    family = "error_decomposition"
    module = "dpsweep.figures.clipping_theory"
    title = "Error of a private gradient"
    single = ("epsilon", "epochs", "batch_size", "clipping_bound")


class OptimalClippingTrace(_Overlaps):
    """C* of Theorem 4.1 and the median gradient norm after every epoch, a line per epsilon."""

    family = "optimal_clipping_trace"
    module = "dpsweep.figures.clipping_theory"
    title = "Best clipping bound by the theory"
    single = ("epochs", "batch_size", "clipping_bound")


class PrivacyEffectsFigure(_Overlaps):
    """Best C over epsilon: of its noise alone, of the gradients that it leads to alone, and of both."""

    family = "privacy_effects"
    module = "dpsweep.figures.clipping_theory"
    title = "Effects of ε on the best clipping bound"
    single = ("epochs", "batch_size", "clipping_bound")
    drawn = ("epsilon",)


class PredictedClipping(_Overlaps):
    """Best C as the theory predicts it, beside the measured one, over all problems of the panels.

    Gradients are those of the trial whose C is the nearest to 1. A panel with a clipping rule without a
    bound, such as AUTO-S, is that rule for the problems of the other panels.
    """

    family = "predicted_clipping"
    module = "dpsweep.figures.clipping_theory"
    title = "Predicted and measured clipping bounds"
    single = ("epochs",)
    drawn = ("clipping_bound",)

    def overlaps(self) -> list[Selection]:
        """The cells of every problem at the C nearest to 1."""
        return [
            panel.model_copy(
                update={"clipping_bound": nearest_to_one(panel.values("clipping_bound"))}
            )
            for panel in self.panels
            if named_rule(panel) is None
        ]


def named_rule(selection: Selection) -> str | None:
    """The clipping rule of a selection, if it is one without a bound; None with bounds."""
    first = next(iter(selection.values("clipping_bound")), None)
    return first if isinstance(first, str) and first in RULES else None


__all__ = ["Figure", "Line", "LinePanel", "Panel", "Selection"]
