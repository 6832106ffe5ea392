"""The figures and tables of a study: what each draws, and so which cells it needs.

One class per figure family. A new panel, or a new figure of a known family, is an edit of the
study's YAML.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from dpsweep.study.cells import BatchSize, ClippingBound, number


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Axes(Protocol):
    """The grid of a sweep, as a selection sees it."""

    @property
    def epsilon(self) -> Sequence[float]: ...
    @property
    def epochs(self) -> Sequence[int]: ...
    @property
    def batch_size(self) -> Sequence[BatchSize]: ...
    @property
    def clipping_bounds(self) -> Sequence[ClippingBound]: ...


class Selection(_Part):
    """Cells of one sweep: one value or several per axis; an axis left out means all of it."""

    sweep: str
    epsilon: float | list[float] | None = None
    epochs: int | list[int] | None = None
    batch_size: BatchSize | list[BatchSize] | None = None
    clipping_bound: ClippingBound | list[ClippingBound] | None = None

    def values(self, axis: str, axes: Axes) -> list[Any]:
        """The selected values of ``axis``, in the order given, or else in grid order."""
        chosen = getattr(self, axis)
        if chosen is None:
            return list(getattr(axes, "clipping_bounds" if axis == "clipping_bound" else axis))
        return list(chosen) if isinstance(chosen, list) else [chosen]

    def problems(self, where: str, axes: Axes) -> list[str]:
        """Every selected value that the sweep does not have."""
        found: list[str] = []
        for axis in ("epsilon", "epochs", "batch_size", "clipping_bound"):
            allowed = Selection(sweep=self.sweep).values(axis, axes)
            found += [
                f"{where}.{axis}: found {number(value)}, allowed (sweep {self.sweep}): "
                + ", ".join(number(each) for each in allowed)
                for value in self.values(axis, axes)
                if value not in allowed
            ]
        return found


class Panel(Selection):
    """One axes of a figure, drawn from one selection."""

    title: str


class Line(Selection):
    """One line of a panel.

    ``difficulty`` gives the colour: blue for the easier and orange for the harder problem.
    """

    label: str
    difficulty: Literal["easy", "medium", "hard"] | None = None


class LinePanel(_Part):
    """One axes with several lines."""

    title: str
    lines: Annotated[list[Line], Field(min_length=1)]


class _Target(_Part):
    needs_bounds: ClassVar[bool] = False
    """Whether the target draws C, which AUTO-S and training without clipping do not have."""
    table_files: ClassVar[tuple[str, ...]] = ("tex", "md", "csv")
    """Suffixes of the files of a table."""

    family: str
    caption: Annotated[str, Field(min_length=1, description="in the report, in our own words")]
    section: Annotated[
        str, Field(min_length=1, description="heading of the report it stands under")
    ]

    def selections(self) -> Iterator[tuple[str, Selection]]:
        """Every selection with its place in the YAML, for example ``panels[0]``."""
        for index, panel in enumerate(getattr(self, "panels", ())):
            if isinstance(panel, LinePanel):
                for line_index, line in enumerate(panel.lines):
                    yield f"panels[{index}].lines[{line_index}]", line
            else:
                yield f"panels[{index}]", panel

    def gradient_norms(self) -> list[Selection]:
        """Selections whose gradient norms the target draws (all batch sizes compete)."""
        return []

    def problems(self, where: str, selection: Selection, axes: Axes) -> list[str]:
        """What keeps one of the target's selections from being drawn, found at ``where``.

        Args:
            where: the selection's place in the YAML, for example ``figures.fig1.panels[0]``.
            selection: one of `selections`.
            axes: the grid of its sweep.
        """
        found = selection.problems(where, axes)
        if found:
            return found
        unnamed = [
            each for each in selection.values("clipping_bound", axes) if isinstance(each, str)
        ]
        if self.needs_bounds and unnamed:
            found.append(
                f"{where}.clipping_bound: found {unnamed[0]}, allowed: a sweep with clipping bounds "
                f"(a {self.family} figure draws C)"
            )
        for axis in self.single_axes():
            values = selection.values(axis, axes)
            if len(values) > 1:
                found.append(
                    f"{where}.{axis}: found {', '.join(map(number, values))}, allowed: one of them "
                    f"(a {self.family} figure or table draws one {axis} here)"
                )
        return found

    def single_axes(self) -> tuple[str, ...]:
        """Axes of which each selection must have one value: drawing tunes over the others."""
        return ()


class Heatmap(_Target):
    """Mean macro accuracy over two axes; whatever is not an axis is tuned. The best cell is marked."""

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


class ClippingCurve(_Target):
    """Accuracy against C with B and learning rate tuned jointly; band from worst to best repeat."""

    needs_bounds: ClassVar[bool] = True

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


class GradientNormDistribution(_Target):
    """Distribution of per-example gradient norms after every epoch, a panel per problem."""

    needs_bounds: ClassVar[bool] = True

    family: Literal["gradient_norm_distribution"]
    panels: Annotated[list[Panel], Field(min_length=1)]

    def single_axes(self) -> tuple[str, ...]:
        """A panel is one problem and one C."""
        return ("epsilon", "epochs", "clipping_bound")

    def gradient_norms(self) -> list[Selection]:
        """The norms of every panel's (epsilon, epochs, C)."""
        return list(self.panels)


class GradientNormHistogram(_Target):
    """Histogram of per-example gradient norms after the last epoch, a panel per problem."""

    needs_bounds: ClassVar[bool] = True

    family: Literal["gradient_norm_histogram"]
    panels: Annotated[list[Panel], Field(min_length=1)]

    def single_axes(self) -> tuple[str, ...]:
        """A panel is one problem and one C."""
        return ("epsilon", "epochs", "clipping_bound")

    def gradient_norms(self) -> list[Selection]:
        """The norms of every panel's (epsilon, epochs, C)."""
        return list(self.panels)


class PerClass(_Target):
    """Per class, ordered from easy to hard: relative retained weight, and accuracy difference.

    Each panel's selection names the clipping bounds that are drawn, the baseline among them.
    """

    needs_bounds: ClassVar[bool] = True

    family: Literal["per_class"]
    baseline: Annotated[float, Field(gt=0, description="the C that the others are compared with")]
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

    def selections(self) -> Iterator[tuple[str, Selection]]:
        """Every panel, and its cells at the baseline, whether or not the panel names them."""
        for where, panel in super().selections():
            yield where, panel
            yield f"{where}.baseline", self.at_baseline(panel)

    def at_baseline(self, panel: Selection) -> Selection:
        """The cells of a panel at the baseline C."""
        return Selection(
            sweep=panel.sweep,
            epsilon=panel.epsilon,
            epochs=panel.epochs,
            batch_size=panel.batch_size,
            clipping_bound=self.baseline,
        )

    def gradient_norms(self) -> list[Selection]:
        """The norms of every drawn (epsilon, epochs, C), where retained weight is a row."""
        if "retained_weight" not in self.rows:
            return []
        return [each for panel in self.panels for each in (panel, self.at_baseline(panel))]


class MethodComparison(_Target):
    """Accuracy against epsilon, as a difference to the best line; everything else is tuned."""

    family: Literal["method_comparison"]
    panels: Annotated[list[LinePanel], Field(min_length=1)]

    def single_axes(self) -> tuple[str, ...]:
        """A line is one problem."""
        return ("epochs",)


class NoiseAxes(_Part):
    """One axes of a noise figure."""

    title: str
    quantity: Annotated[
        Literal["effective", "cumulative", "cumulative_effective"],
        Field(description="sigma/B, sigma*sqrt(T), sigma*sqrt(T)/B"),
    ]
    x: Literal["batch_size", "steps"]


class NoiseCurve(_Target):
    """Noise against B or T, coloured by accuracy minus the best at that (epsilon, epochs)."""

    family: Literal["noise_curve"]
    cells: Selection
    axes: Annotated[list[NoiseAxes], Field(min_length=1)]
    minimum_steps: Annotated[
        PositiveInt | None, Field(description="a vertical line where x is steps")
    ] = None

    def selections(self) -> Iterator[tuple[str, Selection]]:
        """The one selection behind all axes."""
        yield "cells", self.cells


class NormTrace(_Target):
    """Mean per-example gradient norm at every optimizer step, a line per epsilon."""

    family: Literal["norm_trace"]
    panels: Annotated[list[Panel], Field(min_length=1)]

    def single_axes(self) -> tuple[str, ...]:
        """The lines of a panel differ in epsilon; B and C, where there are several, are tuned."""
        return ("epochs",)


class OptimalBatchSize(_Target):
    """The best batch size against epochs, a line per epsilon, band over repeats."""

    family: Literal["optimal_batch_size"]
    panels: Annotated[list[Panel], Field(min_length=1)]


Figure = Annotated[
    Heatmap
    | ClippingCurve
    | GradientNormDistribution
    | GradientNormHistogram
    | PerClass
    | MethodComparison
    | NoiseCurve
    | NormTrace
    | OptimalBatchSize,
    Field(discriminator="family"),
]


class HyperparameterGrid(_Target):
    """The grid of every sweep, from the study itself (Table A1)."""

    family: Literal["hyperparameter_grid"]


class Datasets(_Target):
    """What was prepared: sizes, classes, balance, source (Table A2)."""

    family: Literal["datasets"]


class ReferenceValue(_Part):
    """A number that a paper prints, beside which ours is shown."""

    value: float
    minimum: float | None = None
    maximum: float | None = None


class ComparedCells(Selection):
    """One entry of a comparison table: its row, its column, and the reference, if there is one."""

    row: list[str]
    column: str
    reference: ReferenceValue | None = None


class Comparison(_Target):
    """Best accuracy of each selection in a grid of rows and columns, mean [min, max] over repeats."""

    family: Literal["comparison"]
    comparable: Annotated[
        bool,
        Field(
            description="false where data or models are not the reference's: its numbers stand beside "
            "nothing then"
        ),
    ] = True
    row_titles: Annotated[list[str], Field(min_length=1)]
    entries: Annotated[list[ComparedCells], Field(min_length=1)]

    @model_validator(mode="after")
    def _entries_fill_a_grid(self) -> Self:
        seen: set[tuple[str, ...]] = set()
        for index, entry in enumerate(self.entries):
            if len(entry.row) != len(self.row_titles):
                raise ValueError(
                    f"entries[{index}].row: found {entry.row}, allowed: {len(self.row_titles)} "
                    f"value(s), one for each of row_titles ({', '.join(self.row_titles)})"
                )
            place = (*entry.row, entry.column)
            if place in seen:
                raise ValueError(f"entries[{index}]: {', '.join(place)} stands twice in the table")
            seen.add(place)
        return self

    def single_axes(self) -> tuple[str, ...]:
        """A entry is one problem."""
        return ("epsilon", "epochs")

    def selections(self) -> Iterator[tuple[str, Selection]]:
        """Every entry."""
        for index, entry in enumerate(self.entries):
            yield f"entries[{index}]", entry


class TuningImplications(_Target):
    """The paper's tuning rules, each with the measured evidence in the named sweeps."""

    table_files: ClassVar[tuple[str, ...]] = ("tex", "md", "csv", "comparisons.csv")

    family: Literal["tuning_implications"]
    cells: Annotated[list[Selection], Field(min_length=1)]

    def selections(self) -> Iterator[tuple[str, Selection]]:
        """Every selection whose cells are compared."""
        for index, selection in enumerate(self.cells):
            yield f"cells[{index}]", selection


Table = Annotated[
    HyperparameterGrid | Datasets | Comparison | TuningImplications,
    Field(discriminator="family"),
]
__all__ = [
    "ClippingBound",
    "Figure",
    "Selection",
    "Table",
]
