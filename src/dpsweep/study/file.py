"""A study: its smaller sections, and the cells, problems, figures and tables that follow from all of them."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PositiveInt, model_validator

from dpsweep.privacy import Sampling
from dpsweep.study import section
from dpsweep.study.cells import BatchSize, Cell, FeatureSource, Problem, optimizer_steps
from dpsweep.study.checks import disagreements
from dpsweep.study.clipping import (
    Clipping,
    ClippingBound,
    PrivateRule,
    clipping_kind,
    clipping_rule,
)
from dpsweep.study.datasets import Dataset, held_out_rows
from dpsweep.study.fingerprints import SettingsHash
from dpsweep.study.grid import Block, Grid, Grids
from dpsweep.study.networks import Backbone, BytesTokenizer, Features, HeadOnly, Method
from dpsweep.study.optimizers import BY_DEFAULT, Optimizer, OptimizerSection
from dpsweep.study.release import Audit, Budget, Release
from dpsweep.study.sweeps import Sweep, bracket_trials, one_method_each, one_optimizer_each
from dpsweep.study.targets import Figure, PrintedTable, Targets, resolve_targets

NO_FIGURES = "none"
"""An entry of `figures` that leaves out the paper's figures and tables."""


class PaperNumber(section.Section):
    """A number that a paper prints, and the cells that it describes; tables show ours beside it."""

    dataset: str
    """a name of datasets"""
    backbone: str
    """a name of backbones"""
    method: str
    """a name of methods"""
    clipping_bound: section.PositiveFloat | PrivateRule | Literal["tuned"]
    """a C; automatic (AUTO-S); or tuned, the best of several C"""
    epsilon: section.PositiveFloat
    """ε of the number"""
    epochs: PositiveInt
    """E of the number"""
    value: float
    """its accuracy, from 0 to 1"""
    minimum: float | None = None
    """smallest over seeds"""
    maximum: float | None = None
    """largest over seeds"""


class DatasetRoles(section.Section):
    """Names of datasets."""

    main: section.Name | None = None
    """of most figures"""
    large: section.Name | None = None
    """many examples of every class"""
    small: section.Name | None = None
    """few examples of every class"""
    imbalanced: section.Name | None = None
    """classes of different sizes"""
    scratch: section.Name | None = None
    """for training from scratch"""
    text: section.Name | None = None
    """texts"""


class BackboneRoles(section.Section):
    """Names of backbones."""

    weak: section.Name | None = None
    """of most figures: the weaker one, or the only one"""
    strong: section.Name | None = None
    """compared with the weak one"""
    residual: section.Name | None = None
    """a convolutional network"""
    scratch: section.Name | None = None
    """a network without pretraining"""
    text: section.Name | None = None
    """reads texts"""


class MethodRoles(section.Section):
    """Names of methods."""

    main: section.Name | None = None
    """of most figures"""
    lora: section.Name | None = None
    """low-rank adapters"""
    ranks: list[section.Name] = []
    """low-rank adapters that differ in their rank"""
    all: section.Name | None = None
    """every parameter"""
    scratch: section.Name | None = None
    """every parameter, from random weights"""
    text: section.Name | None = None
    """for the dataset of texts"""


class Roles(section.Section):
    """The datasets, backbones and methods of figures and tables.

    A target is left out if a role that it needs is not bound; `dpsweep check` lists such targets.
    """

    datasets: DatasetRoles = DatasetRoles()
    """datasets of figures and tables, by role"""
    backbones: BackboneRoles = BackboneRoles()
    """backbones, by role"""
    methods: MethodRoles = MethodRoles()
    """methods, by role"""
    neighbours: dict[section.Name, Annotated[section.Grid, Field(min_length=3, max_length=3)]] = {}
    """for a method: the small, baseline and large clipping bound that figures compare; by default the
    bound nearest to 1 and its neighbours on the grid"""

    def bound(self, part: str, name: str) -> list[str] | None:
        """Return the names that a role is bound to.

        Args:
            part: dataset, backbone or method.
            name: of a role, or any other word.

        Returns:
            Names, an empty list if the role is not bound; None if there is no such role.
        """
        roles = getattr(self, f"{part}s")
        if name not in type(roles).model_fields:
            return None
        found = getattr(roles, name)
        return found if isinstance(found, list) else [] if found is None else [found]

    def roles_of(self, part: str) -> list[str]:
        """Return the roles of a part: dataset, backbone or method."""
        return list(type(getattr(self, f"{part}s")).model_fields)


def _colour_map(name: str) -> str:
    from matplotlib import colormaps  # noqa: PLC0415 (a study without a style does not need it)

    if name not in colormaps:
        raise ValueError("allowed: a colour map of matplotlib, such as viridis, magma or cividis")
    return name


def _colour(name: str) -> str:
    from matplotlib.colors import is_color_like  # noqa: PLC0415

    if not is_color_like(name):
        raise ValueError('allowed: a colour of matplotlib, such as "#0173b2" or navy')
    return name


class Style(section.Section):
    """Colours and sizes of all figures."""

    colour_map: Annotated[str, AfterValidator(_colour_map)] = "viridis"
    """of squares, and of lines for ordered values such as ε"""
    palette: Annotated[list[Annotated[str, AfterValidator(_colour)]], Field(min_length=7)] = [
        # Seaborn's "colorblind" palette, distinguishable with common colour-vision deficiencies.
        *("#0173b2", "#949494", "#d55e00"),
        *("#029e73", "#cc78bc", "#56b4e9", "#000000"),
    ]
    """seven colours: of an easy, a medium and a hard problem, and of up to four methods"""
    font_size: Annotated[float, Field(ge=4, le=24)] = 8.0
    """in points; small type scales with it"""
    page_width: Annotated[float, Field(ge=3, le=20)] = 5.5
    """of a figure across the page, in inches"""

    @property
    def difficulty(self) -> dict[str, str]:
        """The colours of an easy, a medium and a hard problem."""
        return dict(zip(("easy", "medium", "hard"), self.palette, strict=False))

    @property
    def easy(self) -> str:
        """The colour of an easy problem, and of a single line."""
        return self.palette[0]

    @property
    def hard(self) -> str:
        """The colour of a hard problem, and of marks."""
        return self.palette[2]

    @property
    def small(self) -> float:
        """The font size of notes beside a drawing, such as the chosen settings, in points."""
        return self.points(6)

    def points(self, size: float) -> float:
        """Scale a font size, given for the base size 8, to this style; points."""
        return size * self.font_size / 8


class Privacy(section.Section):
    """The guarantee that every private trial of the study is calibrated to."""

    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """of the guarantee; below 1/N"""
    step_rounding: Literal["round", "ceil"] = "round"
    """how E epochs become optimizer steps: round is max(1, round(E*N/B)); ceil is E*ceil(N/B),
    which can be many more passes over the data than E"""
    check_with_opacus: bool = False
    """also check every noise multiplier with Opacus' accountant"""

    def sampling(self, train_size: int, batch_size: BatchSize, epochs: int) -> Sampling:
        """Return the sampling of E epochs over N units of privacy, with T steps by ``step_rounding``."""
        size = train_size if batch_size == "full" else batch_size
        steps = optimizer_steps(train_size, size, epochs, self.step_rounding)
        return Sampling(train_size, size, steps)


class Training(section.Section):
    """How trials are trained and selected, for all sweeps."""

    selection: Literal["repeat-best", "exhaustive", "bracket"] = "repeat-best"
    """repeat-best tunes the learning rate with the first seed and repeats the best one with the
    others; exhaustive trains the whole grid with every seed; bracket is repeat-best that searches
    the grid for its peak instead of training all of it"""
    select_on: Literal["test", "holdout"] = "test"
    """the data that learning rate, batch size and clipping bound are chosen on: the test set, as in
    the paper, which is optimistic; or a part of the training set that is held out of training"""
    holdout_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """share of the training set, for holdout; each example is drawn independently"""
    engine: section.Engine = "auto"
    """how per-example gradients are computed: auto takes the fastest engine that supports the network;
    a method and a sweep may have their own"""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """of forward and backward passes; auto is bfloat16 on GPUs that have it, otherwise float32.
    Parameters are float32 in any case, gradient norms at least, a step's sum and its noise float64"""
    physical_batch: PositiveInt | Literal["auto"] = 256
    """examples on the device at once, halved if memory runs out. auto begins with a whole batch (256 on
    a CPU). Changes results only by rounding"""
    automatic_clipping_gamma: section.PositiveFloat = 0.01
    """gamma of AUTO-S (Bu et al. 2023)"""
    checkpoint_minutes: section.PositiveFloat = 5.0
    """most minutes of work that a killed trial may lose"""
    gpus: section.Gpus = 1
    """GPUs of each job that trains trials or measures gradient norms: they share every batch of a trial.
    Results are the same up to rounding. It pays for few long trials; many trials are faster one per GPU"""
    threads: Annotated[int, Field(gt=0, le=512)] = 1
    """CPU threads of a training job for each of its GPUs (part of the result's key)"""
    compile: bool = False
    """let torch compile the training step if the engine supports it (expanded): minutes at the start
    of a cell, faster steps on a GPU"""


class Theory(section.Section):
    """Batches for measuring per-example gradients along a trial. Not private."""

    draws: Annotated[PositiveInt, Field(le=1000)] = 3
    """batches that are measured after every epoch"""
    largest_batch: PositiveInt = 4096
    """most examples of a batch; otherwise a batch has the trial's expected size"""
    seeds: Annotated[PositiveInt, Field(le=1000)] = 1
    """seeds of a cell that are measured, at most as many as it has; all but the first are trained
    again"""


class Study(section.Section):
    """The sections of a study file, which agree with each other; its cells, figures and tables."""

    model_config = {"serialize_by_alias": True}

    title: section.Title
    """of the report"""
    results: Annotated[str, Field(min_length=1), AfterValidator(section.usable_folder)] = "results"
    """folder of all outputs"""
    privacy: Privacy = Privacy()
    """the guarantee of every trial"""
    training: Training = Training()
    """how trials are trained and selected"""
    theory: Theory = Theory()
    """batches of the theory's figures"""
    datasets: dict[section.Name, Dataset]
    """by name"""
    backbones: dict[section.Name, Backbone]
    """by name"""
    methods: dict[section.Name, Method]
    """by name"""
    optimizers: dict[section.Name, Optimizer] = {}
    """adam, adamw, sgd and adam-bc have their defaults unless defined here"""
    sweeps: Annotated[
        dict[section.Name, Sweep],
        BeforeValidator(one_method_each),
        Field(min_length=1),
        AfterValidator(one_optimizer_each),
    ]
    """by name; a grid each"""
    roles: Roles = Roles()
    """what the paper's figures draw"""
    described_in: Annotated[str | list[str], Field(alias="figures")] = []
    """Python files that describe figures and tables beside the paper's (relative paths start at the
    study's file); none, alone or before such files, leaves out the paper's"""
    style: Style = Style()
    """colours and sizes of figures"""
    references: list[PaperNumber] | str = []
    """numbers of a paper for comparison tables, or a CSV file with a column for each of their keys
    (a relative path starts at the study's file)"""
    audit: Audit | None = None
    """measures ε from below"""
    release: Release | None = None
    """trains a model that may be published"""
    budget: Annotated[Budget | None, Field(exclude_if=lambda value: value is None)] = None
    """limits all releases on the same data"""

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        # Resolve targets only if the sections are valid.
        mistakes = list(disagreements(self)) or self.targets.mistakes
        if mistakes:
            raise ValueError("\n".join(mistakes))
        return self

    @cached_property
    def targets(self) -> Targets:
        """The resolved figures and tables, and the reasons for those that are not drawn."""
        return resolve_targets(self)

    @cached_property
    def settings_hash(self) -> SettingsHash:
        """The digits in file names, a hash of the settings of results."""
        return SettingsHash(self)

    @property
    def figures(self) -> dict[str, Figure]:
        """The figures that are drawn, by name."""
        return self.targets.figures

    @property
    def tables(self) -> dict[str, PrintedTable]:
        """The tables that are written, by name."""
        return self.targets.tables

    @property
    def figure_files(self) -> list[str]:
        """The Python files with the study's own figures and tables."""
        return [file for file in self._described_in() if file != NO_FIGURES]

    @property
    def has_paper_figures(self) -> bool:
        """Whether the paper's figures and tables are drawn."""
        return NO_FIGURES not in self._described_in()

    def _described_in(self) -> list[str]:
        return [self.described_in] if isinstance(self.described_in, str) else self.described_in

    @property
    def reference_values(self) -> list[PaperNumber]:
        """Numbers that a paper prints."""
        return [] if isinstance(self.references, str) else self.references

    def audit_cells(self) -> list[Cell]:
        """Return the audited settings, batch size by batch size; none without an audit.

        Their full batch is the training set with its canaries.
        """
        if self.audit is None:
            return []
        problem = self.sweeps[self.audit.sweep].problem.name
        return [
            Cell(problem, epsilon, self.audit.epochs, batch_size, self.audit.clipping_bound)
            for batch_size in self.audit.batch_size
            for epsilon in self.audit.epsilon
        ]

    def sweep_cells(self, sweep: str) -> list[Cell]:
        """Return all cells of a sweep, in grid order."""
        return self.sweeps[sweep].cells()

    def trials_per_cell(self, sweep: str) -> int:
        """Return the number of trials that a cell trains; with ``selection: bracket``, the maximum."""
        return self._trials[sweep]

    @cached_property
    def _trials(self) -> dict[str, int]:
        found = {}
        for name, grid in self.sweeps.items():
            rates = len(grid.learning_rates)
            match self.training.selection:
                case "exhaustive":
                    found[name] = rates * grid.seeds
                case "bracket":
                    found[name] = bracket_trials(rates) + grid.seeds - 1
                case "repeat-best":
                    found[name] = rates + grid.seeds - 1
        return found

    @cached_property
    def problems(self) -> dict[str, Problem]:
        """Problems by name, in the order of the sweeps."""
        return {sweep.problem.name: sweep.problem for sweep in self.sweeps.values()}

    def sweeps_of(self, problem: str) -> list[str]:
        """Return the names of the sweeps that train a problem."""
        return self._sweeps_of[problem]

    @cached_property
    def _sweeps_of(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, sweep in self.sweeps.items():
            found.setdefault(sweep.problem.name, []).append(name)
        return found

    def problem_cells(self, problem: str) -> list[Cell]:
        """Return all cells of a problem, each once, in the order of its sweeps."""
        return list(self._problem_cells[problem])

    @cached_property
    def _problem_cells(self) -> dict[str, dict[Cell, None]]:
        found: dict[str, dict[Cell, None]] = {}
        for name, sweep in self.sweeps.items():
            cells = found.setdefault(sweep.problem.name, {})
            cells.update(dict.fromkeys(self.sweep_cells(name)))
        return found

    def competing_cells(
        self, problem: str, epsilon: float, epochs: int, clipping_bound: ClippingBound
    ) -> list[Cell]:
        """Return the cells that compete for the gradient norms of one (problem, epsilon, epochs, C).

        Args:
            problem: its name.
            epsilon: of the guarantee.
            epochs: E.
            clipping_bound: C, or the name of a rule.

        Returns:
            One for each batch size of the grid that has the cell, in the grid's order.
        """
        sizes = self._batch_sizes.get(problem, ())
        cells = (Cell(problem, epsilon, epochs, size, clipping_bound) for size in sizes)
        return [cell for cell in cells if self.has(cell)]

    @cached_property
    def _batch_sizes(self) -> dict[str, dict[BatchSize, None]]:
        return {
            problem: dict.fromkeys(cell.batch_size for cell in cells)
            for problem, cells in self._problem_cells.items()
        }

    @property
    def swept_datasets(self) -> list[str]:
        """The datasets that sweeps train on, in the order of the study."""
        used = {sweep.dataset for sweep in self.sweeps.values()}
        return [name for name in self.datasets if name in used]

    @property
    def swept_backbones(self) -> list[str]:
        """The backbones of the sweeps, in their order."""
        return list(dict.fromkeys(sweep.backbone for sweep in self.sweeps.values()))

    def kinds(self) -> list[tuple[str, int]]:
        """Return every (problem, epochs) of the study; the cells of one cost the same."""
        return list(dict.fromkeys((cell.problem, cell.epochs) for cell in self.all_cells()))

    def all_cells(self) -> list[Cell]:
        """Return every cell of the study once, problem by problem."""
        return [cell for cells in self._problem_cells.values() for cell in cells]

    def has(self, cell: Cell) -> bool:
        """Return whether a cell is in the grid of the study."""
        return cell in self._sweep_of

    def sweep_of(self, cell: Cell) -> str:
        """Return the first sweep that has a cell; all sweeps that have it train it alike.

        Raises:
            KeyError: no sweep has it.
        """
        return self._sweep_of[cell]

    @cached_property
    def _sweep_of(self) -> dict[Cell, str]:
        # The first sweep that has a cell is entered last, and overwrites the others.
        return {cell: name for name in reversed(self.sweeps) for cell in self.sweep_cells(name)}

    def __copy__(self) -> Self:
        """Copy without cached properties, because ``model_copy`` may replace the sections behind them."""
        copy = super().__copy__()
        for name in copy.__dict__.keys() - type(self).model_fields.keys():
            del copy.__dict__[name]
        return copy

    def method_title(self, problem: str) -> str:
        """Return the title of a problem's method, with its optimizer unless that is Adam."""
        parts = self.problems[problem]
        title = self.methods[parts.method].title
        if parts.optimizer == "adam":
            return title
        return f"{title}, {self.optimizer(parts.optimizer).full_title()}"

    @cached_property
    def every_optimizer(self) -> dict[str, OptimizerSection]:
        """Optimizers by name: those of the study, and the default ones."""
        return BY_DEFAULT | self.optimizers

    def optimizer(self, name: str) -> OptimizerSection:
        """Return an optimizer by its name."""
        return self.every_optimizer[name]

    def optimizer_title(self, name: str, epsilons: Iterable[float]) -> str:
        """Return the title of an optimizer at some epsilons: DP-Adam, SGD."""
        return self.optimizer(name).full_title(private=any(map(math.isfinite, epsilons)))

    def physical_batch(self, problem: str) -> int | Literal["auto"]:
        """Return the physical batch size of a problem: examples on the device at once."""
        first = self.sweeps[self.sweeps_of(problem)[0]]
        return first.physical_batch or self.training.physical_batch

    def gpus(self, problem: str) -> int:
        """Return the number of GPUs of a job that trains the trials of a problem."""
        first = self.sweeps[self.sweeps_of(problem)[0]]
        return first.gpus or self.training.gpus

    def release_gpus(self, release: Release) -> int:
        """Return the number of GPUs that a release trains on."""
        return release.gpus or self.gpus(self.sweeps[release.sweep].problem.name)

    def engine(self, problem: str) -> section.Engine:
        """Return how the trials of a problem compute per-example gradients."""
        first = self.sweeps[self.sweeps_of(problem)[0]]
        return first.engine or self.methods[first.method].engine or self.training.engine

    def clipping(self, cell: Cell) -> Clipping:
        """Return the clipping rule of a cell."""
        return clipping_rule(cell.clipping_bound, self.training.automatic_clipping_gamma)

    def features(self, problem: str) -> Features | None:
        """Return the cached features that a problem's trials read; None if they run the network."""
        parts = self.problems[problem]
        if isinstance(self.methods[parts.method], HeadOnly):
            return self.backbones[parts.backbone].features
        return None

    def trains_on_vectors(self, problem: str) -> bool:
        """Return whether trials train a head on embeddings or cached features, without a network."""
        dataset = self.datasets[self.problems[problem].dataset]
        return dataset.kind == "embedding" or self.features(problem) is not None

    def feature_sources(self) -> dict[FeatureSource, str]:
        """Return the datasets and backbones of cached features, and the first problem of each."""
        found: dict[FeatureSource, str] = {}
        for name, parts in self.problems.items():
            if self.features(name) is not None:
                found.setdefault(FeatureSource(parts.dataset, parts.backbone), name)
        return found

    def batch_size(self, cell: Cell) -> int:
        """Return the expected batch size of a cell as a number: N for the full batch."""
        return self.numeric_batch_size(self.problems[cell.problem].dataset, cell.batch_size)

    def numeric_batch_size(self, dataset: str, batch_size: BatchSize) -> int:
        """Return the expected batch size as a number of examples of a dataset."""
        return self.train_size(dataset) if isinstance(batch_size, str) else batch_size

    def steps(self, dataset: str, epochs: int, batch_size: BatchSize) -> int:
        """Return T, the number of optimizer steps, by the study's rounding rule."""
        return self.sampling(dataset, epochs, batch_size).steps

    def sampling(self, dataset: str, epochs: int, batch_size: BatchSize) -> Sampling:
        """Return N, B and T of private training."""
        return self.privacy.sampling(self.train_size(dataset), batch_size, epochs)

    @property
    def holdout_share(self) -> float:
        """The share of training sets held out for selection; 0 if the test set is used for that."""
        return self.training.holdout_share if self.training.select_on == "holdout" else 0.0

    def holdout_size(self, dataset: str) -> int:
        """Return the number of training examples, or units, held out for selection, by `held_out_rows`.

        It does not depend on the data.
        """
        if not self.holdout_share:
            return 0
        return len(held_out_rows(self.datasets[dataset].protected, self.holdout_share))

    def train_size(self, dataset: str) -> int:
        """Return N: the examples, or units, that training samples from; noise is calibrated for N."""
        return self.datasets[dataset].protected - self.holdout_size(dataset)

    def reads_bytes(self, dataset: str) -> bool:
        """Return whether the tokens of a dataset of texts are bytes."""
        reader = self.backbones.get(self.datasets[dataset].tokenizer or "")
        return reader is not None and isinstance(reader.reads_with, BytesTokenizer)

    def grid(
        self,
        dataset: str = "main",
        backbone: str = "weak",
        method: str = "main",
        optimizer: str = "adam",
        clipping: str = "flat",
        several: tuple[str, ...] = (),
    ) -> Grid:
        """Return the grid of a problem; arguments and errors as of ``one`` of `dpsweep.study.grid.Grids`."""
        return Grids(self).one(dataset, backbone, method, optimizer, clipping, several)

    @cached_property
    def blocks(self) -> Mapping[tuple[str, str], list[Block]]:
        """The values of each sweep by axis, by the name of its problem and its kind of clipping."""
        found: dict[tuple[str, str], list[Block]] = {}
        for sweep in self.sweeps.values():
            kind = clipping_kind(sweep.clipping_bound)
            block = {axis: frozenset(values) for axis, values in sweep.axes.items()}
            found.setdefault((sweep.problem.name, kind), []).append(block)
        return found

    @cached_property
    def cells_by_epochs(self) -> Counter[tuple[str, int]]:
        """The number of cells of each dataset with each number of epochs."""
        return Counter(
            (self.problems[cell.problem].dataset, cell.epochs) for cell in self.all_cells()
        )
