"""The trials of a cell: how many there are, and what is kept of the best."""

from dpsweep.study.bracket import bracket_trials
from dpsweep.study.study import Study

# The best trial of a cell keeps its parameters after every epoch where they take at most this
# much. That is every FiLM, LoRA and head-only trial of the paper; gradient norms of a larger
# one train it again.
KEPT_PARAMETER_BYTES = 100e6


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
