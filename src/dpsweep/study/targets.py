"""The families of figures, one class each, with the cells that they need.

A function describes a figure with roles and words (`dpsweep.figures.paper`). `dpsweep.study.resolved_targets`
makes from it a figure of the same class whose selections name their cells. These classes import no plotting
library, because every job of a study imports them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from dpsweep.config.cells import number
from dpsweep.config.clipping import RULES, nearest_to_one
from dpsweep.config.selections import Line, LinePanel, Panel, Selection, Settings

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas as pd

    from dpsweep.config.style import Style
    from dpsweep.study.bound import Bound, BoundSelection
    from dpsweep.study.paths import Paths
    from dpsweep.study.study import Study

Panels = Annotated[list[Panel], Field(min_length=1)]
LinePanels = Annotated[list[LinePanel], Field(min_length=1)]


class NotDrawnError(LookupError):
    """A target without cells in the study; the message names what is missing."""


class MistakeError(ValueError):
    """A wrong selection; the message names the key, the value and what is allowed."""


class Target(Settings):
    """A figure or a table of a study."""

    title: ClassVar[str]
    """The heading of the family's targets."""
    family: ClassVar[str]
    """The name of the family."""
    part: ClassVar[str] = "panels"
    """The key of the target's selections."""
    needs_bounds: ClassVar[bool] = False
    """Whether the target draws C; AUTO-S and training without clipping have no C."""
    ordered: ClassVar[bool] = False
    """Whether the lines of a panel go from the easy problem to the hard one."""
    tunes: ClassVar[bool] = False
    """Whether the drawn settings are chosen by accuracy; the caption then says how."""
    shows_means: ClassVar[bool] = False
    """Whether accuracies are means over the seeds that chose; the caption then explains the optimism."""
    marks: ClassVar[tuple[str, str]] = ("", "")
    """For the caption: the mark of squares as good as the best, and the group that they are compared in."""
    tuning_note: ClassVar[str] = ""
    """A further sentence of the caption on how settings were chosen."""
    single: ClassVar[tuple[str, ...]] = ()
    """Axes that must have one value in each selection unless they are drawn: a line is one problem."""
    drawn: ClassVar[tuple[str, ...]] = ()
    """Axes that must have two values or more in each selection, such as the x axis of a curve."""
    reads_steps: ClassVar[bool] = False
    """Whether it draws what every step of the trials recorded."""

    section: str = ""
    """its heading in the report, from its function (`figure`, `table`)"""
    caption: Annotated[str, Field(min_length=1)]
    """in the report; {dataset}, {epochs}, {seeds} and others are replaced by texts
    (dpsweep.study.captions)"""

    def selections(self) -> list[Selection]:
        """Return every selection of the target."""
        return self.leaves()

    def parts(self) -> list[Any]:
        """Return the panels, entries or cells of the target; none for a table that selects no cells."""
        parts = getattr(self, self.part, [])
        return parts if isinstance(parts, list) else [parts]

    def leaves(self) -> list[Selection]:
        """Return the selections of the parts, or of their lines, in the order of the file."""
        return [
            leaf
            for part in self.parts()
            for leaf in (part.lines if isinstance(part, LinePanel) else [part])
        ]

    def gradient_norms(self) -> list[Selection]:
        """Return the selections whose gradient norms the target draws (all batch sizes compete)."""
        return []

    def overlaps(self) -> list[Selection]:
        """Return the selections of cells whose overlaps of gradients the target draws."""
        return []

    def single_axes(self) -> tuple[str, ...]:
        """Return the axes that must have one value in each selection; axes in neither list are tuned."""
        return tuple(axis for axis in self.single if axis not in self.drawn_axes())

    def drawn_axes(self) -> tuple[str, ...]:
        """Return the axes that the target draws: each selection must have two values or more."""
        return self.drawn

    def caption_end(self) -> str:
        """Return the end of the caption of a resolved target."""
        return ""

    def with_study(
        self, bound: "Bound", where: str, selections: "Sequence[BoundSelection]"
    ) -> Self:
        """Return the target with what it takes from the study beside its parts.

        Args:
            bound: the study.
            where: the place of the description, for an error message.
            selections: those of the target, resolved.

        Raises:
            NotDrawnError: the study lacks what it needs.
            MistakeError: the description is wrong.
        """
        return self

    def further_settings(self) -> dict[str, Any]:
        """Return what it has from the study beside its fields, for its fingerprint."""
        return {}

    def described_datasets(self, swept: Sequence[str]) -> Sequence[str]:
        """Return the datasets whose metadata it reads, of those with a sweep."""
        return ()


class PrintedTable(Target):
    """A table. A family of your own defines ``frames`` for its numbers and ``layout`` to print them."""

    table_files: ClassVar[tuple[str, ...]] = ("tex", "md", "csv")
    """Suffixes of the files of the table."""
    words: ClassVar[tuple[str, ...]] = ()
    """Columns of text that may look like numbers."""

    @property
    def row_titles(self) -> list[str]:
        """The titles of columns with row labels, which are text."""
        return []

    def frames(
        self, study: "Study", paths: "Paths", missing: list[Path] | None = None
    ) -> "dict[str, pd.DataFrame]":
        """Read results, and return the rows of the table's files by suffix; ``csv`` is printed.

        Args:
            study: the study that has the table.
            paths: the paths of its results.
            missing: absent files are added to it and left out. If it is None, they are an error.

        Raises:
            MissingResultsError: a file is absent, and ``missing`` is None.
            UnreadableResultsError: a file has a wrong content.
        """
        raise NotImplementedError

    def layout(self, numbers: "pd.DataFrame") -> Any:
        """Return the text of the rows: a `dpsweep.tables.text.TextTable`, which writes LaTeX and Markdown."""
        raise NotImplementedError


@dataclass(frozen=True)
class Columns:
    """The columns of the frame that a figure is drawn from.

    Attributes:
        keys: those that distinguish the rows of a line, separated by spaces.
        values: the other ones that it needs.
        absent: defaults of the optional ones: values, or functions of the frame.
    """

    keys: str
    values: str
    absent: Mapping[str, Any] = field(default_factory=dict)


_CHOSEN = dict.fromkeys(("batch_size", "learning_rate", "clipping_bound"), math.nan)


def _same(*columns: str, as_column: str) -> dict[str, Any]:
    """Return defaults that repeat another column."""
    return {each: (lambda frame: frame[as_column]) for each in columns}


def _lines(value: str) -> dict[str, Any]:
    """Return defaults of the columns of lines; ``value`` is the column of the points."""
    return {
        **_CHOSEN,
        "label": "all",
        "line": lambda frame: frame["label"].factorize()[0],
        **_same("minimum", "maximum", as_column=value),
        **{"repeats": 1, "difficulty": None, "as_good": False},
    }


class Figure(Target):
    """A figure. A family of your own defines ``compute`` for its numbers and ``plot`` to draw them."""

    module: ClassVar[str] = ""
    """The module with the functions ``compute_<family>`` and ``plot_<family>``."""

    def compute(
        self, study: "Study", paths: "Paths", missing: list[Path] | None = None
    ) -> "pd.DataFrame":
        """Read results, and return the rows of the figure's CSV; no rows if there are no results yet.

        Args:
            study: the study that has the figure.
            paths: the paths of its results.
            missing: absent files are added to it and left out. If it is None, they are an error.

        Raises:
            MissingResultsError: a file is absent, and ``missing`` is None.
            UnreadableResultsError: a file has a wrong content.
        """
        found: pd.DataFrame = self._function("compute")(study, paths, self, missing)
        return found

    def plot(self, numbers: "pd.DataFrame") -> "matplotlib.figure.Figure":
        """Draw the numbers of `compute`."""
        drawing: matplotlib.figure.Figure = self._function("plot")(self, numbers)
        return drawing

    def columns(self) -> Columns:
        """Return the columns that `plot` needs, for `draw`."""
        return Columns("", "")

    def for_frame(self, frame: "pd.DataFrame") -> Self:
        """Return the figure with options that fit a frame for `draw`.

        Raises:
            ValueError: the frame does not fit the figure's own options.
        """
        return self

    @classmethod
    def draw(
        cls, frame: "pd.DataFrame", *, style: "Style | None" = None, **options: Any
    ) -> "matplotlib.figure.Figure":
        """Draw any frame, in a notebook: without columns for panels or lines there is one of them.

        >>> import pandas as pd
        >>> frame = pd.DataFrame({"clipping_bound": [0.1, 1, 10], "centre": [0.6, 0.7, 0.5]})
        >>> drawing = ClippingCurve.draw(frame)
        >>> drawing.savefig("curve.pdf")  # doctest: +SKIP
        >>> drawing.axes[-1].get_xlabel()
        'Clipping bound C (log scale)'

        Args:
            frame: the rows, in any order; the docstring of the class has the columns.
            style: colours and sizes.
            options: fields of the class, such as ``quantity`` or ``rows``.

        Raises:
            ValueError: a column is missing or has the wrong type, or a row is missing or repeated.
            TypeError: the class has no such field.
        """
        if unknown := options.keys() - cls.model_fields.keys():
            raise TypeError(f"{cls.__name__} has no field {', '.join(sorted(unknown))}")
        drawing = import_module("dpsweep.figures.drawing")
        found: matplotlib.figure.Figure = drawing.draw_frame(
            cls.model_construct(**options), frame, style
        )
        return found

    def _function(self, does: str) -> Any:
        return getattr(import_module(self.module), f"{does}_{self.family}")


class _Overlaps(Figure):
    """A figure of overlaps of the gradients of trials (`dpsweep.theory`), which are not private."""

    panels: Panels

    def overlaps(self) -> list[Selection]:
        """Return the selections of all panels."""
        return list(self.panels)

    def caption_end(self) -> str:
        """Return the warning that the figure is not private."""
        return "Not private: drawn from raw gradients."


class Heatmap(Figure):
    """Mean macro accuracy over two axes; everything else is tuned.

    Squares that are as good as the best of their panel are framed (`dpsweep.analysis.scatter`).

    A frame for `draw` has columns ``x``, ``y`` and ``macro_accuracy``; optional ``panel`` and ``title`` (of
    problems side by side), ``full_batch`` (whether the batch is the training set), ``learning_rate``,
    ``as_good`` (squares with a frame) and, if ``y`` is not the batch size, ``batch_size``.
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
    """one colour scale for all panels, or one for each panel (from worst to best)"""
    panels: Panels

    @model_validator(mode="after")
    def _two_axes(self) -> Self:
        if self.x == self.y:
            raise ValueError(f"x and y are both {self.x}; allowed: two different axes")
        return self

    def drawn_axes(self) -> tuple[str, ...]:
        """Return the two axes of the map."""
        return (self.x, self.y)

    def columns(self) -> Columns:
        """Return the columns that `plot` needs."""
        absent = _CHOSEN | {"as_good": False}
        return Columns(f"{self.x} {self.y}", "macro_accuracy batch_size", absent)


class ClippingCurve(Figure):
    """Accuracy against C with B and learning rate tuned jointly; band from worst to best repeat.

    The lines of a panel go from the easy problem to the hard one. Points that are as good as the best
    of their line are ringed (`dpsweep.analysis.scatter`).

    A frame for `draw` has columns ``clipping_bound`` and ``centre`` (the accuracy, or its difference to the
    best); optional ``panel``, ``title``, ``label`` (of a line), ``minimum``, ``maximum``, ``repeats``,
    ``seed_1``, ``seed_2``, ... (accuracies of repeats), ``batch_size``, ``learning_rate``, ``as_good``
    (points with a ring) and ``difficulty`` (easy, medium or hard: the colour).
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

    def columns(self) -> Columns:
        """Return the columns that `plot` needs."""
        return Columns("clipping_bound", "centre", _lines("centre"))


class _GradientNorms(Figure):
    """A figure of per-example gradient norms at the best batch size, with a panel for each problem."""

    needs_bounds = True
    tunes = True
    single = ("epsilon", "epochs", "clipping_bound")

    panels: Panels

    def gradient_norms(self) -> list[Selection]:
        """Return the selections of all panels."""
        return list(self.panels)


class GradientNormDistribution(_GradientNorms):
    """Distribution of per-example gradient norms after every epoch, a panel per problem.

    A frame for `draw` has columns ``epoch``, ``quantity`` (density, quantile or share above C), ``norm``,
    ``value``, ``clipping_bound``; optional ``panel``, ``title``, ``batch_size``, ``learning_rate``.
    """

    family = "gradient_norm_distribution"
    module = "dpsweep.figures.gradient_norms"
    title = "Gradient norms by epoch"

    def columns(self) -> Columns:
        """Return the columns that `plot` needs."""
        return Columns("epoch quantity norm value", "clipping_bound", _CHOSEN)


class GradientNormHistogram(_GradientNorms):
    """Histogram of per-example gradient norms after the last epoch, a panel per problem.

    A frame for `draw` has columns ``lower`` and ``upper`` (edges of bins), ``share``, ``share_above_bound``
    and ``clipping_bound``; optional ``panel``, ``title``, ``batch_size``, ``learning_rate``.
    """

    family = "gradient_norm_histogram"
    module = "dpsweep.figures.gradient_norms"
    title = "Gradient norms after training"

    def columns(self) -> Columns:
        """Return the columns that `plot` needs."""
        return Columns("lower", "upper share share_above_bound clipping_bound", _CHOSEN)


class PerClass(Figure):
    """Per class, ordered from easy to hard: relative retained weight, and accuracy difference.

    Each panel names the clipping bounds to draw; they include the baseline.

    A frame for `draw` has columns ``class``, ``class_name``, ``class_rank`` (from easy to hard; NaN without
    test examples), ``clipping_bound`` and, as ``rows`` need them, ``relative_retained_weight`` and
    ``accuracy_difference``; optional their running means (``..._smooth``) with ``running_mean_over``
    (classes), ``panel``, ``title``, ``batch_size``, ``learning_rate``.
    """

    family = "per_class"
    module = "dpsweep.figures.classes"
    title = "Classes: retained weight and accuracy"
    needs_bounds = True
    tunes = True
    single = ("epsilon", "epochs")
    drawn = ("clipping_bound",)

    baseline: Annotated[float, Field(gt=0)] = 1.0
    """the C that the others are compared with; by default that of the word baseline"""
    rows: Annotated[
        list[Literal["retained_weight", "accuracy_difference"]], Field(min_length=1)
    ] = ["retained_weight", "accuracy_difference"]
    retained_weight_of: Literal["trainable", "classifier"] = "trainable"
    """the gradient norms behind the retained weight: those of all trainable parameters, which
    are clipped, or of the classifier alone"""
    panels: Panels

    def selections(self) -> list[Selection]:
        """Return every panel, and its cells at the baseline even if the panel does not name them."""
        return [each for panel in self.panels for each in (panel, self.at_baseline(panel))]

    def at_baseline(self, panel: Selection) -> Selection:
        """Return the cells of a panel at the baseline C."""
        return panel.model_copy(update={"clipping_bound": self.baseline})

    def gradient_norms(self) -> list[Selection]:
        """Return all selections if retained weight is a row."""
        return self.selections() if "retained_weight" in self.rows else []

    def described_datasets(self, swept: Sequence[str]) -> Sequence[str]:
        """Return the datasets of the panels, for the names of their classes."""
        return [each.problem.dataset for each in self.panels]

    def with_study(
        self, bound: "Bound", where: str, selections: "Sequence[BoundSelection]"
    ) -> Self:
        """Return the figure with its baseline, the clipping bound that others are compared with."""
        if "baseline" not in self.model_fields_set:
            return self.model_copy(update={"baseline": bound.compared_bound(selections)})
        for each in selections:
            if not all(map(bound.study.has, self.at_baseline(each.selection).cells())):
                raise MistakeError(
                    f"{where}: baseline: found {number(self.baseline)}; allowed: a clipping "
                    f"bound of {each.problem}"
                )
        return self

    def columns(self) -> Columns:
        """Return the columns that `plot` needs."""
        names = {"retained_weight": "relative_retained_weight"}
        shown = [names.get(row, row) for row in self.rows]
        absent = _CHOSEN | {"running_mean_over": 1, "relative_retained_weight": math.nan}
        for each in shown:
            absent |= _same(f"{each}_smooth", as_column=each)
        return Columns("clipping_bound class", " ".join(["class_name class_rank", *shown]), absent)

    def for_frame(self, frame: "pd.DataFrame") -> Self:
        """Return the figure if the frame has its baseline."""
        bounds = sorted({*frame["clipping_bound"]})
        if self.baseline not in bounds:
            allowed = ", ".join(map(str, bounds))
            raise ValueError(f"baseline: found {self.baseline:g}; allowed: {allowed}")
        return self


class MethodComparison(Figure):
    """Accuracy against epsilon, as a difference to the best line; everything else is tuned.

    A frame for `draw` has columns ``epsilon``, ``label`` (the method) and ``centre`` (the difference);
    optional ``panel``, ``title``, ``minimum``, ``maximum``, ``repeats``, ``seed_1``, ..., ``batch_size``,
    ``learning_rate`` and ``clipping_bound``.
    """

    family = "method_comparison"
    module = "dpsweep.figures.accuracy_lines"
    title = "Methods by ε"
    tunes = True
    shows_means = True
    single = ("epochs",)
    drawn = ("epsilon",)

    panels: LinePanels

    def columns(self) -> Columns:
        """Return the columns that `plot` needs."""
        return Columns("epsilon", "label centre", _lines("centre"))


class NoiseAxes(Settings):
    """One axes of a noise figure."""

    title: str
    quantity: Literal["effective", "cumulative", "cumulative_effective"]
    """sigma/B, sigma*sqrt(T), sigma*sqrt(T)/B"""
    x: Literal["batch_size", "steps"]


class NoiseCurve(Figure):
    """Noise against B or T, coloured by accuracy minus the best at that (epsilon, epochs).

    A frame for `draw` has columns ``axes`` (a position in the field of this name), ``epsilon``, ``epochs``,
    ``batch_size``, ``steps``, ``noise`` and ``accuracy_difference``; optional ``full_batch``,
    ``clipping_bound``, ``learning_rate``.
    """

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
    (<dataset>_<backbone>_<method>): a vertical line if x is steps and that problem is drawn"""

    @property
    def marked_steps(self) -> int | None:
        """The steps at the vertical line; the number of a paper holds for its own problem only."""
        if all(axes.x != "steps" for axes in self.axes):
            return None
        return self.minimum_steps.get(self.cells.problem.name)

    def with_study(
        self, bound: "Bound", where: str, selections: "Sequence[BoundSelection]"
    ) -> Self:
        """Return the figure with its cells."""
        return self.model_copy(update={"cells": selections[0].selection})

    def caption_end(self) -> str:
        """Return the explanation of the vertical line, if there is one."""
        steps = self.marked_steps
        if steps is None:
            return ""
        return f"The vertical line is at {steps} steps, the fewest that suffice according to the paper."

    def columns(self) -> Columns:
        """Return the columns that `plot` needs."""
        values = "steps noise accuracy_difference"
        return Columns("axes epsilon epochs batch_size", values, _CHOSEN)


class AttackerCurves(Figure):
    """The true positive rate of the best membership attack against its false positive rate.

    A line per epsilon. It is computed from noise, sampling rate and steps, not from accuracies.

    A frame for `draw` has columns ``epsilon``, ``false_positive_rate`` and ``true_positive_rate``; optional
    ``records`` (of one person), ``panel``, ``title``.
    """

    family = "attacker_curves"
    module = "dpsweep.figures.attackers"
    title = "What an attacker can tell"
    single = ("epochs", "batch_size")

    records: Annotated[list[PositiveInt], Field(min_length=1)] = [1]
    """numbers of records of one person; a line for each"""
    panels: Panels

    def columns(self) -> Columns:
        """Return the columns that `plot` needs."""
        return Columns("epsilon false_positive_rate", "true_positive_rate", {"records": 1})

    def for_frame(self, frame: "pd.DataFrame") -> Self:
        """Return the figure with the numbers of records in the frame."""
        return self.model_copy(update={"records": sorted(map(int, frame["records"].unique()))})


class NormTrace(Figure):
    """Mean per-example gradient norm at every optimizer step, a line per epsilon.

    A frame for `draw` has columns ``epsilon``, ``step`` and ``mean_gradient_norm``; optional ``panel``,
    ``title``, ``mean_gradient_norm_smooth`` with ``running_mean_over`` (steps), ``batch_size``,
    ``learning_rate``.
    """

    family = "norm_trace"
    module = "dpsweep.figures.gradient_norms"
    title = "Mean gradient norm by step"
    tunes = True
    reads_steps = True
    single = ("epochs",)

    panels: Panels

    def columns(self) -> Columns:
        """Return the columns that `plot` needs."""
        smooth = _same("mean_gradient_norm_smooth", as_column="mean_gradient_norm")
        absent = _CHOSEN | smooth | {"running_mean_over": 1}
        return Columns("epsilon step", "mean_gradient_norm", absent)


class OptimalBatchSize(Figure):
    """The best batch size against epochs, mean over repeats, a line per epsilon.

    A frame for `draw` has columns ``epsilon``, ``epochs``, ``mean_batch_size`` and ``train_size``; optional
    ``panel``, ``title``, ``minimum``, ``maximum``, ``repeats``, ``seed_1``, ..., ``learning_rate`` and
    ``clipping_bound``.
    """

    family = "optimal_batch_size"
    module = "dpsweep.figures.accuracy_lines"
    title = "Best batch size by epochs"
    tunes = True
    drawn = ("epochs", "batch_size")

    panels: Panels

    def columns(self) -> Columns:
        """Return the columns that `plot` needs."""
        ends = dict.fromkeys(("as_good_smallest", "as_good_largest"), math.nan)
        absent = _lines("mean_batch_size") | ends
        return Columns("epsilon epochs", "mean_batch_size train_size", absent)


class ErrorDecomposition(_Overlaps):
    """MSE(C) of Theorem 4.1 split into bias and noise, at the start and at the end of training.

    A frame for `draw` has columns ``epoch``, ``clipping_bound``, ``bias``, ``noise``, ``error`` and
    ``best_bound``; optional ``smallest`` and ``largest`` (of draws), ``panel``, ``title``, ``batch_size``,
    ``learning_rate``.
    """

    family = "error_decomposition"
    module = "dpsweep.figures.clipping_theory"
    title = "Error of a private gradient"
    single = ("epsilon", "epochs", "batch_size", "clipping_bound")

    def columns(self) -> Columns:
        """Return the columns that `plot` needs."""
        absent = _CHOSEN | _same("smallest", "largest", as_column="error")
        return Columns("epoch clipping_bound", "bias noise error best_bound", absent)


class OptimalClippingTrace(_Overlaps):
    """C* of Theorem 4.1 and the median gradient norm after every epoch, a line per epsilon.

    A frame for `draw` has columns ``epsilon``, ``epoch``, ``best_bound`` and ``median_norm``; optional
    ``smallest`` and ``largest`` (of draws), ``panel``, ``title``.
    """

    family = "optimal_clipping_trace"
    module = "dpsweep.figures.clipping_theory"
    title = "Best clipping bound by the theory"
    single = ("epochs", "batch_size", "clipping_bound")

    def columns(self) -> Columns:
        """Return the columns that `plot` needs."""
        absent = _same("smallest", "largest", as_column="best_bound")
        return Columns("epsilon epoch", "best_bound median_norm", absent)


class PrivacyEffectsFigure(_Overlaps):
    """Best C over epsilon: by the effect of noise alone, of the gradients alone, and of both.

    A frame for `draw` has columns ``rule`` (C* or scale-free C), ``effect`` (both, noise alone, gradients
    alone), ``epsilon`` and ``best_bound``; optional ``smallest`` and ``largest`` (of draws), ``panel``,
    ``title``.
    """

    family = "privacy_effects"
    module = "dpsweep.figures.clipping_theory"
    title = "Effects of ε on the best clipping bound"
    single = ("epochs", "batch_size", "clipping_bound")
    drawn = ("epsilon",)

    def columns(self) -> Columns:
        """Return the columns that `plot` needs."""
        absent = _same("smallest", "largest", as_column="best_bound")
        return Columns("rule effect epsilon", "best_bound", absent)


class PredictedClipping(_Overlaps):
    """The best C as predicted by the theory, beside the measured one, over all problems of the panels.

    The gradients come from the trial with the C nearest to 1. A panel with a clipping rule without a
    bound, such as AUTO-S, adds that rule to the problems of the other panels.

    A frame for `draw` has columns ``rule``, ``epsilon``, ``predicted``, ``measured``, ``mean_lost`` and
    ``settings`` (the number in the mean); optional ``mean_lost_upper``, and ``rank_correlation`` with
    its interval.
    """

    family = "predicted_clipping"
    module = "dpsweep.figures.clipping_theory"
    title = "Predicted and measured clipping bounds"
    single = ("epochs",)
    drawn = ("clipping_bound",)

    def overlaps(self) -> list[Selection]:
        """Return the cells of every problem at the C nearest to 1."""
        return [
            panel.model_copy(
                update={"clipping_bound": nearest_to_one(panel.values("clipping_bound"))}
            )
            for panel in self.panels
            if named_rule(panel) is None
        ]

    def columns(self) -> Columns:
        """Return the columns that `plot` needs."""
        names = ("rank_correlation", "rank_correlation_lower", "rank_correlation_upper")
        absent = dict.fromkeys((*names, "mean_lost_upper"), math.nan)
        return Columns("", "rule epsilon predicted measured mean_lost settings", absent)


def named_rule(selection: Selection) -> str | None:
    """Return the clipping rule of a selection if the rule has no bound, else None."""
    first = next(iter(selection.values("clipping_bound")), None)
    return first if isinstance(first, str) and first in RULES else None


__all__ = ["Figure", "Line", "LinePanel", "Panel", "Selection"]
