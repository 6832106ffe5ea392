"""Synthetic results of a study: the files that its figures read, without training.

Easy problems are best at a small C and a large B, hard ones at a large C and a small B, so that figures show
differences.
"""

import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpsweep.analysis.frames import load_trials
from dpsweep.study import Cell, Study
from dpsweep.study.cells import optimizer_steps
from dpsweep.study.choice import choose
from dpsweep.study.grid import Selection
from dpsweep.study.paths import Paths
from dpsweep.study.targets import Figure
from tests.synthetic import write_cells, write_dataset, write_gradient_norms, write_overlaps

DIFFICULTY = {"strong": 0.0, "residual": 0.2, "text": 0.3, "weak": 0.5, "scratch": 1.0}
"""The difficulty of problems with a backbone, by its role."""
_DRAWS, _EXAMPLES_OF_A_DRAW, _DIMENSION = 2, 16, 8  # of overlaps of gradients


def write_results(
    study: Study, paths: Paths, figures: Sequence[Figure], most_examples: int
) -> None:
    """Write the results that some figures of a study read.

    Args:
        study: the study.
        paths: its files.
        figures: the figures.
        most_examples: the largest number of examples in a file of gradient norms.
    """
    outcome = Outcome(study)
    for name, dataset in study.datasets.items():
        counts = random("counts", name).pareto(3, size=dataset.classes) + 1
        counts = np.maximum(1, np.floor(counts / counts.sum() * dataset.train_size)).astype(int)
        counts[0] += dataset.train_size - counts.sum()
        write_dataset(
            paths, name, counts.tolist(), title=dataset.title, test_size=dataset.test_size
        )
    read = selected(study, (each for figure in figures for each in figure.selections()))
    traces = (figure for figure in figures if figure.reads_steps)
    traced = selected(study, (each for figure in traces for each in figure.selections()))
    write_cells(study, paths, outcome, read - traced)
    write_cells(study, paths, outcome, traced, steps_too=True)
    for file, competing in files_of_norms(study, paths, figures):
        best = choose(load_trials(study, paths, competing), by=["problem"]).iloc[0]
        cell = Cell.parse(best["problem"], best["cell"])
        norms = norms_of(study, cell, file.stem, most_examples)
        write_gradient_norms(study, paths, cell, best["learning_rate"], list(norms))
    for cell in selected(study, (each for figure in figures for each in figure.overlaps())):
        noise_multiplier = outcome(cell, 0.01, 1)["noise_multiplier"]
        write_overlaps(study, paths, cell, noise_multiplier, list(gradients_of(study, cell)))


def selected(study: Study, selections: Iterable[Selection]) -> set[Cell]:
    """Return the cells of selections."""
    return {cell for selection in selections for cell in selection.cells()}


def random(*parts: object) -> np.random.Generator:
    """Return a generator for some setting, the same in every process."""
    return np.random.default_rng(zlib.crc32(repr(parts).encode()))


def difficulty(study: Study, cell: Cell) -> float:
    """Return the difficulty, from 0 (a strong backbone and a loose budget) to about 2."""
    backbone = study.problems[cell.problem].backbone
    roles = study.roles.backbones.model_dump()
    of_backbone = [DIFFICULTY[role] for role, name in roles.items() if name == backbone]
    return max(of_backbone, default=1.0) + math.log2(8 / min(cell.epsilon, 8)) / 4


class Outcome:
    """The synthetic outcome of each trial of a study."""

    def __init__(self, study: Study) -> None:
        self.study = study

    def __call__(self, cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        """Return an outcome that falls with the distance to the best setting of the problem."""
        sweep = self.study.sweeps[self.study.sweep_of(cell)]
        dataset = self.study.datasets[sweep.dataset]
        size, train_size = self.study.batch_size(cell), dataset.train_size
        steps = optimizer_steps(train_size, size, cell.epochs, "round")
        hard = difficulty(self.study, cell)
        bounds = [bound for bound in sweep.clipping_bounds if not isinstance(bound, str)] or [1.0]
        best_bound = bounds[0] * (bounds[-1] / bounds[0]) ** min(1.0, 0.2 + 0.5 * hard)
        bound = (
            0.5 * best_bound if isinstance(cell.clipping_bound, str) else float(cell.clipping_bound)
        )
        span = math.log(bounds[-1] / bounds[0]) or 1.0
        far = math.log(bound / best_bound) / span
        best_size = train_size * min(1.0, cell.epochs / 32) / 4**hard
        rates = sweep.learning_rates
        middle = math.sqrt(rates[0] * rates[-1])
        accuracy = (
            0.9
            - 0.22 * hard
            - 0.25 * far**2
            - 0.004 * math.log2(size / best_size) ** 2
            - 0.03 * math.log(rate / middle) ** 2
            + 0.1 * math.log2(cell.epochs) / 5
            + random("trial", cell, rate, seed).normal(scale=0.004)
        )
        accuracy = float(np.clip(accuracy, 1 / dataset.classes, 0.99))
        classes = random("classes", sweep.dataset).normal(scale=0.12, size=dataset.classes)
        wobble = random("class", cell, seed).normal(scale=0.02, size=dataset.classes)
        per_class = np.clip(accuracy + classes * (1 + far) + wobble, 0, 1)
        rate_of_sampling = size / train_size
        noise = 3 * rate_of_sampling * math.sqrt(steps) / cell.epsilon + 0.5
        norms = 3 + hard + 2 * np.exp(-np.arange(steps) / (0.2 * steps))
        return {
            "macro_accuracy": accuracy,
            "per_class_accuracy": list(per_class),
            "noise_multiplier": noise,
            "step_norms": norms + random("steps", cell).normal(scale=0.2, size=steps),
        }


def files_of_norms(
    study: Study, paths: Paths, figures: Sequence[Figure]
) -> Iterator[tuple[Path, list[Cell]]]:
    """Yield every file of gradient norms that a figure reads, with the cells that compete for it."""
    files: dict[Path, dict[Cell, None]] = {}
    for figure in figures:
        for cell in selected(study, figure.gradient_norms()):
            file = paths.gradient_norms(
                study, cell.problem, cell.epsilon, cell.epochs, cell.clipping_bound
            )
            files.setdefault(file, {})[cell] = None
    return ((file, list(cells)) for file, cells in files.items())


def norms_of(study: Study, cell: Cell, name: str, most_examples: int) -> Iterator[tuple[Any, Any]]:
    """Yield labels and norms of training examples after every epoch."""
    dataset = study.datasets[study.problems[cell.problem].dataset]
    typical = 30.0 if study.methods[study.problems[cell.problem].method].kind == "all" else 3.0
    generator = random("norms", cell.problem, name)
    examples = min(dataset.train_size, most_examples)
    labels = generator.permutation(np.arange(examples) % dataset.classes)
    hard = difficulty(study, cell)
    of_class = np.linspace(-0.5, 0.5, dataset.classes)[labels]
    for epoch in range(cell.epochs):
        centre = math.log(typical) + 0.3 * hard - 0.8 * epoch / cell.epochs / (0.3 + hard)
        yield (
            labels,
            np.exp(centre + of_class + generator.normal(scale=0.5 + 0.1 * epoch, size=examples)),
        )


def gradients_of(study: Study, cell: Cell) -> Iterator[list[np.ndarray[Any, Any]]]:
    """Yield gradients of some draws of a batch, at the start and after every epoch, ever less aligned."""
    generator = random("gradients", cell)
    hard = difficulty(study, cell)
    for epoch in range(cell.epochs + 1):
        alike = (0.3 + hard) * (1 - 0.7 * epoch / cell.epochs)
        shape = (_EXAMPLES_OF_A_DRAW, _DIMENSION)
        yield [generator.normal(alike, 1 + 0.2 * epoch, size=shape) for _ in range(_DRAWS)]
