"""The whole study file: its sections, and the cells and problems that follow from them."""

import math
from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field

from dpsweep.privacy import Sampling
from dpsweep.study.backbones import Backbone, Features
from dpsweep.study.cells import BatchSize, Cell, FeatureSource, Problem, optimizer_steps
from dpsweep.study.clipping import Clipping, ClippingBound, clipping_rule
from dpsweep.study.datasets import Dataset
from dpsweep.study.methods import HeadOnly, Method
from dpsweep.study.optimizers import BY_DEFAULT, Optimizer, OptimizerSection
from dpsweep.study.references import PaperNumber
from dpsweep.study.release import Audit, Budget, Release
from dpsweep.study.roles import Roles
from dpsweep.study.section import Engine, Name, Section, Title, usable_folder
from dpsweep.study.shares import held_out_rows
from dpsweep.study.style import Style
from dpsweep.study.sweeps import Sweep, one_method_each, one_optimizer_each
from dpsweep.study.training import Privacy, Theory, Training

NO_FIGURES = "none"
"""An entry of `figures` that leaves out the paper's figures and tables."""


class StudyFile(Section):
    """The sections of a study, and the cells that its sweeps span."""

    model_config = ConfigDict(serialize_by_alias=True)

    title: Title
    """of the report"""
    results: Annotated[str, Field(min_length=1), AfterValidator(usable_folder)] = "results"
    """folder of all outputs"""
    privacy: Privacy = Privacy()
    """the guarantee of every trial"""
    training: Training = Training()
    """how trials are trained and selected"""
    theory: Theory = Theory()
    """batches of the theory's figures"""
    datasets: dict[Name, Dataset]
    """by name"""
    backbones: dict[Name, Backbone]
    """by name"""
    methods: dict[Name, Method]
    """by name"""
    optimizers: dict[Name, Optimizer] = {}
    """adam, adamw, sgd and adam-bc have their defaults unless defined here"""
    sweeps: Annotated[
        dict[Name, Sweep],
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

    @cached_property
    def problems(self) -> dict[str, Problem]:
        """Problems by name, in the order of the sweeps."""
        return {sweep.problem.name: sweep.problem for sweep in self.sweeps.values()}

    def sweeps_of(self, problem: str) -> list[str]:
        """Return the names of the sweeps that train a problem."""
        return [name for name, sweep in self.sweeps.items() if sweep.problem.name == problem]

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
    def has_private_data(self) -> bool:
        """Whether a dataset is marked ``private``."""
        return any(dataset.private for dataset in self.datasets.values())

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
        return f"{title}, {self.optimizer(parts.optimizer).called()}"

    @cached_property
    def every_optimizer(self) -> dict[str, OptimizerSection]:
        """Optimizers by name: those of the study, and the default ones."""
        return BY_DEFAULT | self.optimizers

    def optimizer(self, name: str) -> OptimizerSection:
        """Return an optimizer by its name."""
        return self.every_optimizer[name]

    def optimizer_title(self, name: str, epsilons: Iterable[float]) -> str:
        """Return the title of an optimizer at some epsilons: DP-Adam, SGD."""
        return self.optimizer(name).called(private=any(map(math.isfinite, epsilons)))

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

    def engine(self, problem: str) -> Engine:
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

    def feature_sources(self) -> list[FeatureSource]:
        """List the datasets and backbones for which features are computed."""
        problems = [parts for name, parts in self.problems.items() if self.features(name)]
        return list(dict.fromkeys(FeatureSource(each.dataset, each.backbone) for each in problems))

    def batch_size(self, cell: Cell) -> int:
        """Return the expected batch size of a cell as a number: N for the full batch."""
        return self.numeric_batch_size(self.problems[cell.problem].dataset, cell.batch_size)

    def numeric_batch_size(self, dataset: str, batch_size: BatchSize) -> int:
        """Return the expected batch size as a number of examples of a dataset."""
        return self.train_size(dataset) if isinstance(batch_size, str) else batch_size

    def steps(self, dataset: str, epochs: int, batch_size: BatchSize) -> int:
        """Return T, the number of optimizer steps, by the study's rounding rule."""
        size = self.numeric_batch_size(dataset, batch_size)
        return optimizer_steps(self.train_size(dataset), size, epochs, self.privacy.step_rounding)

    def sampling(self, dataset: str, epochs: int, batch_size: BatchSize) -> Sampling:
        """Return N, B and T of private training."""
        size = self.numeric_batch_size(dataset, batch_size)
        return Sampling(self.train_size(dataset), size, self.steps(dataset, epochs, batch_size))

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
