"""Made-up results of a whole study: every file that its figures read, without training.

Easy problems want a small C and a large B, hard ones a large C and a small B, so that every figure has
something to show.
"""

import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dpsweep.analysis.frames import load_trials
from dpsweep.config.cells import optimizer_steps
from dpsweep.study import Cell, Study
from dpsweep.study.choice import choose
from dpsweep.study.paths import Paths
from dpsweep.study.targets import NormTrace
from tests.synthetic import write_cells, write_dataset, write_gradient_norms, write_overlaps

DIFFICULTY = {"strong": 0.0, "residual": 0.2, "text": 0.3, "weak": 0.5, "scratch": 1.0}
"""How hard problems are with a backbone, by its role."""
_DRAWS, _EXAMPLES_OF_A_DRAW, _DIMENSION = 3, 16, 8  # of overlaps of gradients


def write_results(study: Study, paths: Paths, most_examples: int | None = None) -> None:
    """Write every result that the figures and tables of a study read.

    Args:
        study: the study.
        paths: where results go.
        most_examples: of a file of gradient norms; by default the whole training set.
    """
    outcome = Outcome(study)
    traced = {
        cell
        for figure in study.figures.values()
        if isinstance(figure, NormTrace)
        for selection in figure.selections()
        for cell in study.cells(selection)
    }
    for name, dataset in study.datasets.items():
        counts = random("counts", name).pareto(3, size=dataset.classes) + 1
        counts = np.maximum(1, np.floor(counts / counts.sum() * dataset.train_size)).astype(int)
        counts[0] += dataset.train_size - counts.sum()
        write_dataset(
            paths, name, counts.tolist(), title=dataset.title, test_size=dataset.test_size
        )
    cells = set(study.all_cells())
    write_cells(study, paths, outcome, cells - traced)
    write_cells(study, paths, outcome, cells & traced, steps_too=True)
    for file, competing in drawn_norms(study, paths):
        best = choose(load_trials(study, paths, competing), by=["problem"]).iloc[0]
        cell = Cell.parse(best["problem"], best["cell"])
        norms = norms_of(study, cell, file.stem, most_examples)
        write_gradient_norms(study, paths, cell, best["learning_rate"], list(norms))
    for cell in drawn_overlaps(study):
        noise_multiplier = outcome(cell, 0.01, 1)["noise_multiplier"]
        write_overlaps(study, paths, cell, noise_multiplier, list(gradients_of(study, cell)))


def random(*parts: object) -> np.random.Generator:
    """A generator of its own for every setting, the same in every process."""
    return np.random.default_rng(zlib.crc32(repr(parts).encode()))


def difficulty(study: Study, cell: Cell) -> float:
    """From 0 (a strong backbone and a loose budget) to about 2."""
    backbone = study.problems[cell.problem].backbone
    roles = study.roles.backbones.model_dump()
    of_backbone = [DIFFICULTY[role] for role, name in roles.items() if name == backbone]
    return max(of_backbone, default=1.0) + math.log2(8 / min(cell.epsilon, 8)) / 4


class Outcome:
    """What a trial of the study comes to."""

    def __init__(self, study: Study) -> None:
        self.study = study

    def __call__(self, cell: Cell, rate: float, seed: int) -> dict[str, Any]:
        """Made up from how far the trial is from the best setting of its problem."""
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


def drawn_norms(study: Study, paths: Paths) -> Iterator[tuple[Path, list[Cell]]]:
    """Every file of gradient norms that a figure reads, with the cells that compete for it."""
    files: dict[Path, dict[Cell, None]] = {}
    for figure in study.figures.values():
        for selection in figure.gradient_norms():
            for cell in study.cells(selection):
                file = paths.gradient_norms(
                    study, cell.problem, cell.epsilon, cell.epochs, cell.clipping_bound
                )
                files.setdefault(file, {})[cell] = None
    return ((file, list(cells)) for file, cells in files.items())


def norms_of(
    study: Study, cell: Cell, name: str, most_examples: int | None
) -> Iterator[tuple[Any, Any]]:
    """Labels and norms of training examples after every epoch."""
    dataset = study.datasets[study.problems[cell.problem].dataset]
    typical = 30.0 if study.methods[study.problems[cell.problem].method].kind == "all" else 3.0
    generator = random("norms", cell.problem, name)
    examples = min(dataset.train_size, most_examples or dataset.train_size)
    labels = generator.permutation(np.arange(examples) % dataset.classes)
    hard = difficulty(study, cell)
    of_class = np.linspace(-0.5, 0.5, dataset.classes)[labels]
    for epoch in range(cell.epochs):
        centre = math.log(typical) + 0.3 * hard - 0.8 * epoch / cell.epochs / (0.3 + hard)
        yield (
            labels,
            np.exp(centre + of_class + generator.normal(scale=0.5 + 0.1 * epoch, size=examples)),
        )


def drawn_overlaps(study: Study) -> dict[Cell, None]:
    """The cells of whose gradients a figure draws how they overlap."""
    return {
        cell: None
        for figure in study.figures.values()
        for selection in figure.overlaps()
        for cell in study.cells(selection)
    }


def gradients_of(study: Study, cell: Cell) -> Iterator[list[np.ndarray[Any, Any]]]:
    """Gradients of some draws of a batch, at the start and after every epoch: less and less alike."""
    generator = random("gradients", cell)
    hard = difficulty(study, cell)
    for epoch in range(cell.epochs + 1):
        alike = (0.3 + hard) * (1 - 0.7 * epoch / cell.epochs)
        shape = (_EXAMPLES_OF_A_DRAW, _DIMENSION)
        yield [generator.normal(alike, 1 + 0.2 * epoch, size=shape) for _ in range(_DRAWS)]
