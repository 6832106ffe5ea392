"""The trials of a cell: what the study says of them, how many there are, and what is kept of the best."""

from dataclasses import dataclass
from typing import Literal

from dpsweep.study.bracket import bracket_trials
from dpsweep.study.cells import Cell, Problem
from dpsweep.study.clipping import Clipping
from dpsweep.study.config import Method, Study

# The best trial of a cell keeps its parameters after every epoch where they take at most this
# much. That is every FiLM, LoRA and head-only trial of the paper; gradient norms of a larger
# one train it again.
KEPT_PARAMETER_BYTES = 100e6


@dataclass(frozen=True)
class TrialSettings:
    """What a study says of all trials of a cell; N, B, T and sigma are those of its calibration.

    Attributes:
        problem: what trains with what.
        epochs: E.
        clipping: the rule that bounds the influence of one example.
        method: which parameters train.
        holdout: training examples that are selected on instead of trained on.
        engine: how per-example gradients are computed.
        precision: of forward and backward passes.
        physical_batch: examples on the device at once.
        threads: of the CPU.
        compile: whether torch compiles the training step.
    """

    problem: Problem
    epochs: int
    clipping: Clipping
    method: Method
    holdout: int
    engine: str
    precision: Literal["auto", "float32", "bfloat16"]
    physical_batch: int | Literal["auto"]
    threads: int
    compile: bool

    @classmethod
    def of(cls, study: Study, cell: Cell) -> "TrialSettings":
        """The settings of a cell of one of the study's problems, whether or not a sweep has it."""
        problem, training = study.problems[cell.problem], study.training
        return cls(
            problem=problem,
            epochs=cell.epochs,
            clipping=study.clipping(cell),
            method=study.methods[problem.method],
            holdout=study.holdout_size(problem.dataset),
            engine=study.engine(cell.problem),
            # A linear layer gains nothing from fewer digits.
            precision="float32" if study.features(cell.problem) else training.precision,
            physical_batch=study.physical_batch(cell.problem),
            threads=training.threads,
            compile=training.compile,
        )


def trials_per_cell(study: Study, sweep: str) -> int:
    """Trials that a cell trains; at most that many with ``selection: bracket``."""
    grid = study.sweeps[sweep]
    rates = len(grid.learning_rates)
    match study.training.selection:
        case "exhaustive":
            return rates * grid.seeds
        case "bracket":
            return bracket_trials(rates) + grid.seeds - 1
    return rates + grid.seeds - 1
