"""A whole study: its sections, and what must agree between them."""

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Annotated, Self

from pydantic import Field, model_validator

from dpsweep.study.cells import BatchSize, Cell, Problem, number, optimizer_steps
from dpsweep.study.config.audit import Audit
from dpsweep.study.config.backbones import Backbone, Pretraining, RandomWeights, TrainedTokenizer
from dpsweep.study.config.datasets import Dataset, FolderSource, HubSource, shares_examples
from dpsweep.study.config.methods import Method, Scratch
from dpsweep.study.config.privacy import Privacy
from dpsweep.study.config.section import Engine, Name, Section
from dpsweep.study.config.sweeps import Sweep
from dpsweep.study.config.training import Training
from dpsweep.study.messages import unknown
from dpsweep.study.shares import held_out_rows
from dpsweep.study.targets import Figure, Selection, Table


class Study(Section):
    """Everything that is run and drawn."""

    title: str
    results: Annotated[str, Field(min_length=1, description="the folder of all outputs")] = (
        "results"
    )
    privacy: Privacy = Privacy()
    training: Training = Training()
    datasets: dict[Name, Dataset]
    backbones: dict[Name, Backbone]
    methods: dict[Name, Method]
    sweeps: Annotated[dict[Name, Sweep], Field(min_length=1)]
    figures: dict[Name, Figure] = {}
    tables: dict[Name, Table] = {}
    audit: Audit | None = None

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        problems = [
            *self._data_problems(),
            *self._sweep_problems(),
            *self._shared_cell_problems(),
            *self._target_problems(),
            *self._audit_problems(),
        ]
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _data_problems(self) -> Iterator[str]:
        readers = [name for name, each in self.backbones.items() if each.reads_with is not None]
        for name, dataset in self.datasets.items():
            where = f"datasets.{name}"
            if dataset.kind not in dataset.source.holds:
                yield (
                    f"{where}.kind: found {dataset.kind}; allowed: {', '.join(dataset.source.holds)}, "
                    f"which is what source {dataset.source.kind} holds"
                )
            if dataset.kind == "image" and dataset.image_size is None:
                yield f"{where}.image_size: missing; allowed: height and width of images in pixels"
            if dataset.crop is not None and not isinstance(
                dataset.source, HubSource | FolderSource
            ):
                yield (
                    f"{where}.crop: found {number(dataset.crop)} with the source "
                    f"{dataset.source.kind}; allowed: with hub and folder"
                )
            if dataset.train_size < dataset.classes:
                yield (
                    f"{where}.train_size: found {dataset.train_size}; allowed: at least {dataset.classes}, "
                    "one example of each class"
                )
            counts = dataset.train_counts
            if isinstance(counts, int):
                counts = [counts] * dataset.classes
            if counts is not None and (
                len(counts) != dataset.classes or sum(counts) != dataset.train_size
            ):
                yield (
                    f"{where}.train_counts: found {len(counts)} numbers, {sum(counts)} in all; allowed: "
                    f"{dataset.classes}, the number of classes, and {dataset.train_size} in all, the "
                    "training set"
                )
            if self.holdout_share and not 0 < self.holdout_size(name) < dataset.train_size:
                yield (
                    f"training.holdout_share: found {number(self.holdout_share)}, which leaves no "
                    f"example of {name} ({dataset.train_size}) to train on or none to select on; "
                    "allowed: a share that leaves some of both"
                )
            if dataset.kind == "text" and dataset.max_length is None:
                yield f"{where}.max_length: missing; allowed: the number of tokens to keep of a text"
            if dataset.kind == "text" and dataset.tokenizer is None:
                yield (
                    f"{where}.tokenizer: missing; allowed: a backbone that reads text: "
                    f"{', '.join(readers) or 'none is defined'}"
                )
            if dataset.kind == "image" and dataset.tokenizer is not None:
                yield f"{where}.tokenizer: found {dataset.tokenizer}; allowed: nothing (images)"
            elif dataset.tokenizer is not None and dataset.tokenizer not in readers:
                yield f"{where}.tokenizer: {unknown(dataset.tokenizer, readers)}"
        for name, backbone in self.backbones.items():
            yield from self._backbone_problems(f"backbones.{name}", backbone)

    def _backbone_problems(self, where: str, backbone: Backbone) -> Iterator[str]:
        weights, tokenizer = backbone.weights, backbone.reads_with
        if backbone.library == "transformers" and tokenizer is None:
            yield (
                f"{where}.tokenizer: missing; allowed: {{kind: hub, id: ...}}, {{kind: file, path: "
                "...}, {kind: train, dataset: ..., vocabulary: ...}"
            )
        if backbone.library != "transformers" and tokenizer is not None:
            yield f"{where}.tokenizer: found one; allowed: with library transformers only"
        if isinstance(tokenizer, TrainedTokenizer):
            if tokenizer.dataset not in self.datasets:
                yield f"{where}.tokenizer.dataset: {unknown(tokenizer.dataset, self.datasets)}"
            elif self.datasets[tokenizer.dataset].kind != "text":
                yield f"{where}.tokenizer.dataset: found {tokenizer.dataset} (images); allowed: texts"
        if isinstance(weights, Pretraining):
            if weights.dataset not in self.datasets:
                yield f"{where}.weights.dataset: {unknown(weights.dataset, self.datasets)}"
            elif not self._reads(backbone, weights.dataset):
                yield f"{where}.weights.dataset: {self._unreadable(weights.dataset)}"

    def _reads(self, backbone: Backbone, dataset: str) -> bool:
        """Whether a backbone reads a dataset: images, or texts in the tokens that it knows."""
        made_for = self.datasets[dataset].tokenizer
        if made_for not in self.backbones:
            return (self.datasets[dataset].kind == "text") == (backbone.reads_with is not None)
        return backbone.reads_with == self.backbones[made_for].reads_with

    def _unreadable(self, dataset: str) -> str:
        tokenizer = self.datasets[dataset].tokenizer
        made_for = f"texts in the tokens of {tokenizer}" if tokenizer else "images"
        return f"found {dataset} ({made_for}); allowed: what the backbone reads"

    def _sweep_problems(self) -> Iterator[str]:
        for name, sweep in self.sweeps.items():
            where = f"sweeps.{name}"
            if sweep.dataset in self.datasets:
                size = self.train_size(sweep.dataset)
                for batch in sweep.batch_size:
                    if not isinstance(batch, str) and batch >= size:
                        yield (
                            f"{where}.batch_size: found {batch}; allowed: below {size}, which is the "
                            f"training set of {sweep.dataset}, or full for all of it"
                        )
            else:
                yield f"{where}.dataset: {unknown(sweep.dataset, self.datasets)}"
            if sweep.backbone not in self.backbones:
                yield f"{where}.backbone: {unknown(sweep.backbone, self.backbones)}"
            elif sweep.dataset in self.datasets:
                backbone = self.backbones[sweep.backbone]
                if not self._reads(backbone, sweep.dataset):
                    yield f"{where}.dataset: {self._unreadable(sweep.dataset)}"
                yield from self._public_problems(where, sweep, backbone)
            if sweep.method not in self.methods:
                yield f"{where}.method: {unknown(sweep.method, self.methods)}"
            elif (
                isinstance(self.methods[sweep.method], Scratch)
                and sweep.backbone in self.backbones
                and not isinstance(self.backbones[sweep.backbone].weights, RandomWeights)
            ):
                yield (
                    f"{where}.method: found {sweep.method} (from scratch) with the pretrained "
                    f"backbone {sweep.backbone}; allowed: a backbone with weights: {{kind: random}}"
                )
            if (
                self.training.precision == "bfloat16"
                and sweep.method in self.methods
                and self.engine(sweep.problem.name) == "opacus"
            ):
                yield (
                    f"{where}: found engine opacus with training.precision bfloat16; allowed: another "
                    "engine, or precision auto or float32"
                )

    def _public_problems(self, where: str, sweep: Sweep, backbone: Backbone) -> Iterator[str]:
        """What a private dataset went into before, epsilon does not count."""
        if sweep.epsilon == [math.inf]:
            return
        for part, section in (("tokenizer", backbone.reads_with), ("weights", backbone.weights)):
            if not isinstance(section, TrainedTokenizer | Pretraining):
                continue
            public = section.dataset
            if {public, sweep.dataset} <= self.datasets.keys() and shares_examples(
                self.datasets[public].source, self.datasets[sweep.dataset].source
            ):
                same = "which" if public == sweep.dataset else f"whose source, as that of {public},"
                yield (
                    f"{where}.dataset: found {sweep.dataset}, {same} went into the {part} of "
                    f"{sweep.backbone} without privacy; allowed: another dataset, or epsilon [.inf]"
                )

    def _shared_cell_problems(self) -> Iterator[str]:
        """Sweeps that share a name, a cell or a problem, and disagree about it."""
        problems: dict[str, str] = {}
        tuned: dict[Cell, str] = {}
        reported: set[tuple[str, str, str]] = set()
        for name, sweep in self.sweeps.items():
            where = f"sweeps.{name}"
            first = problems.setdefault(sweep.problem.name, name)
            other = self.sweeps[first]
            if other.problem != sweep.problem:
                yield (
                    f"{where}: its cells would lie in {sweep.problem.name}/, as those of sweeps.{first}, "
                    "which trains something else; allowed: names of datasets, backbones and methods "
                    "that do not read the same when they are joined with _"
                )
                continue
            for key in ("engine", "physical_batch"):
                ours, theirs = getattr(sweep, key), getattr(other, key)
                if ours != theirs:
                    yield (
                        f"{where}.{key}: found {ours or 'nothing'}; allowed: {theirs or 'nothing'}, as "
                        f"in sweeps.{first}, which trains the same"
                    )
            for cell in self.sweep_cells(name):
                earlier = tuned.setdefault(cell, name)
                for key, ours, theirs in (
                    ("learning_rate", sweep.learning_rates, self.sweeps[earlier].learning_rates),
                    ("seeds", sweep.seeds, self.sweeps[earlier].seeds),
                ):
                    if ours != theirs and (name, earlier, key) not in reported:
                        reported.add((name, earlier, key))
                        yield (
                            f"{where}.{key}: found {ours}, and {theirs} in sweeps.{earlier}, which has "
                            f"the cell {cell.problem}/{cell.name} too; allowed: the same in both, or "
                            "grids that share no cell"
                        )

    def _target_problems(self) -> Iterator[str]:
        for section, targets in (("figures", self.figures), ("tables", self.tables)):
            for name, target in targets.items():
                for path, selection in target.selections():
                    where = f"{section}.{name}.{path}"
                    if selection.sweep in self.sweeps:
                        yield from target.problems(where, selection, self.sweeps[selection.sweep])
                    else:
                        yield f"{where}.sweep: {unknown(selection.sweep, self.sweeps)}"
        for name in self.tables:
            if name in self.figures:
                yield f"tables.{name}: found a figure of that name; allowed: a name that is unique"

    def _audit_problems(self) -> Iterator[str]:
        if self.audit is None:
            return
        if self.audit.sweep not in self.sweeps:
            yield f"audit.sweep: {unknown(self.audit.sweep, self.sweeps)}"
        elif self.sweeps[self.audit.sweep].dataset in self.datasets:
            size = self.train_size(self.sweeps[self.audit.sweep].dataset) + self.audit.canaries
            for batch in self.audit.batch_size:
                if not isinstance(batch, str) and batch >= size:
                    yield (
                        f"audit.batch_size: found {batch}; allowed: below {size}, which is the "
                        "training set with its canaries, or full for all of it"
                    )
        if 2 * self.audit.canaries * self.privacy.delta > 1:
            yield (
                f"audit.canaries: found {self.audit.canaries}; allowed: at most "
                f"{0.5 / self.privacy.delta:.0f}, because more prove nothing about delta "
                f"{number(self.privacy.delta)}"
            )

    def audit_cells(self) -> list[Cell]:
        """The settings that are audited, batch size by batch size; none without an audit.

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

    def cells(self, selection: Selection) -> list[Cell]:
        """The cells that a selection names, in grid order.

        A field that the selection leaves out means every value of the sweep.
        """
        sweep = self.sweeps[selection.sweep]
        return [
            Cell(sweep.problem.name, epsilon, epochs, batch_size, clipping_bound)
            for epsilon in selection.values("epsilon", sweep)
            for epochs in selection.values("epochs", sweep)
            for batch_size in selection.values("batch_size", sweep)
            for clipping_bound in selection.values("clipping_bound", sweep)
        ]

    def sweep_cells(self, sweep: str) -> list[Cell]:
        """All cells of a sweep, in grid order."""
        return self.cells(Selection(sweep=sweep))

    @cached_property
    def problems(self) -> dict[str, Problem]:
        """What is trained with what, by name, in the order of the sweeps."""
        return {sweep.problem.name: sweep.problem for sweep in self.sweeps.values()}

    def sweeps_of(self, problem: str) -> list[str]:
        """The names of the sweeps that train a problem."""
        return [name for name, sweep in self.sweeps.items() if sweep.problem.name == problem]

    def problem_cells(self, problem: str) -> list[Cell]:
        """All cells of a problem, each once, in the order of the sweeps that have it."""
        return list(self._problem_cells[problem])

    @cached_property
    def _problem_cells(self) -> dict[str, dict[Cell, None]]:
        found: dict[str, dict[Cell, None]] = {}
        for name, sweep in self.sweeps.items():
            cells = found.setdefault(sweep.problem.name, {})
            cells.update(dict.fromkeys(self.sweep_cells(name)))
        return found

    def kinds(self) -> list[tuple[str, int]]:
        """Every (problem, epochs) of the study: its cells cost the same."""
        return list(dict.fromkeys((cell.problem, cell.epochs) for cell in self.all_cells()))

    def all_cells(self) -> list[Cell]:
        """Every cell of the study once, problem by problem."""
        return [cell for cells in self._problem_cells.values() for cell in cells]

    def has(self, cell: Cell) -> bool:
        """Whether a cell is in the grid of the study."""
        return cell in self._sweep_of

    def sweep_of(self, cell: Cell) -> str:
        """The first sweep that has a cell; another one that has it too agrees about its training.

        Raises:
            KeyError: no sweep has it.
        """
        return self._sweep_of[cell]

    @cached_property
    def _sweep_of(self) -> dict[Cell, str]:
        found: dict[Cell, str] = {}
        for name in self.sweeps:
            for cell in self.sweep_cells(name):
                found.setdefault(cell, name)
        return found

    def __copy__(self) -> Self:
        """A copy whose sections may be changed (``model_copy``): what follows from them is not taken."""
        copy = super().__copy__()
        for name in copy.__dict__.keys() - type(self).model_fields.keys():
            del copy.__dict__[name]
        return copy

    def physical_batch(self, problem: str) -> int:
        """How many examples of a problem are on the device at once."""
        first = self.sweeps[self.sweeps_of(problem)[0]]
        return first.physical_batch or self.training.physical_batch

    def engine(self, problem: str) -> Engine:
        """How the trials of a problem compute per-example gradients."""
        first = self.sweeps[self.sweeps_of(problem)[0]]
        return first.engine or self.methods[first.method].engine or self.training.engine

    def batch_size(self, cell: Cell) -> int:
        """The expected batch size of a cell as a number: N for the full batch."""
        return self.numeric_batch_size(self.problems[cell.problem].dataset, cell.batch_size)

    def numeric_batch_size(self, dataset: str, batch_size: BatchSize) -> int:
        """The expected batch size as a number of examples of a dataset."""
        return self.train_size(dataset) if isinstance(batch_size, str) else batch_size

    def steps(self, dataset: str, epochs: int, batch_size: BatchSize) -> int:
        """T: the optimizer steps that some epochs on a dataset are, by the study's rule."""
        size = self.numeric_batch_size(dataset, batch_size)
        return optimizer_steps(self.train_size(dataset), size, epochs, self.privacy.steps)

    @property
    def holdout_share(self) -> float:
        """The share of training sets that is held out to select on; 0 where the test set is for that."""
        return self.training.holdout_share if self.training.select_on == "holdout" else 0.0

    def holdout_size(self, dataset: str) -> int:
        """How many examples of a dataset's training set are held out to select on; often none.

        It is the number of rows that `held_out_rows` draws, which no data has a say in.
        """
        return len(held_out_rows(self.datasets[dataset].train_size, self.holdout_share))

    def train_size(self, dataset: str) -> int:
        """N: the examples that private training samples from, and that noise is calibrated for."""
        return self.datasets[dataset].train_size - self.holdout_size(dataset)
