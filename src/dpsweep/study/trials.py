"""The trials of a cell: how many there are, what is kept of the best, and which the bracket skips."""

from collections.abc import Callable

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


def bracket_maximum(count: int, score: Callable[[int], float]) -> int:
    """Find the maximum of a sequence that rises and then falls, from few of its values.

    >>> bracket_maximum(8, lambda position: -abs(position - 5))
    5

    Fibonacci search (Kiefer 1953): two values inside the interval that must hold the maximum tell
    which end to drop, and the remaining one is used again. `bracket_trials` values are enough for
    a strictly unimodal sequence; noise or a plateau can cost the best value, never an error.

    Args:
        count: length of the sequence.
        score: gives a value by position; it is called at most once for each.

    Returns:
        The position of the largest value that was looked at; the smallest one on ties.
    """
    values: dict[int, float] = {}

    def value(position: int) -> float:
        if position >= count:
            return float("-inf")  # the sequence goes on falling
        if position not in values:
            values[position] = score(position)
        return values[position]

    near, far = _first_probes(count)
    before = -1
    while near != far:
        if value(before + near) < value(before + far):
            before += near
        near, far = far - near, near
    value(before + far)
    return max(sorted(values), key=values.__getitem__)


def bracket_trials(count: int) -> int:
    """How many values of a sequence of this length `bracket_maximum` looks at, at most."""
    near, far = _first_probes(count)
    trials = 1
    while near != far:
        near, far, trials = far - near, near, trials + 1
    return min(trials, count)


def _first_probes(count: int) -> tuple[int, int]:
    """Consecutive Fibonacci numbers whose sum leaves room for ``count`` positions between ends."""
    near, far = 1, 1
    while near + far - 1 < count:
        near, far = far, near + far
    return near, far
