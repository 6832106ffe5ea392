"""The trials of a cell: their number, and the search over learning rates that skips some."""

from collections.abc import Callable

from dpsweep.study.study import Study

# The best trial of a cell keeps its parameters after every epoch if they take at most this many bytes.
# Every FiLM, LoRA and head-only trial of the paper does; gradient norms of a larger one train it again.
KEPT_PARAMETER_BYTES = 100e6


def trials_per_cell(study: Study, sweep: str) -> int:
    """Return the number of trials that a cell trains; with ``selection: bracket``, the maximum."""
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

    Fibonacci search (Kiefer 1953): two values inside the interval with the maximum show which end to
    drop, and one of them is used again. `bracket_trials` values are enough for a strictly unimodal
    sequence. With noise or a plateau the search can miss the best value, but it never fails.

    Args:
        count: length of the sequence.
        score: returns the value at a position; it is called at most once for each.

    Returns:
        The position of the largest value that was computed; the smallest position on ties.
    """
    values: dict[int, float] = {}

    def value(position: int) -> float:
        if position >= count:
            return float("-inf")  # the sequence falls behind its end
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
    """Return the largest number of values of a sequence of this length that `bracket_maximum` computes."""
    near, far = _first_probes(count)
    trials = 1
    while near != far:
        near, far, trials = far - near, near, trials + 1
    return min(trials, count)


def _first_probes(count: int) -> tuple[int, int]:
    """Return consecutive Fibonacci numbers with a sum larger than ``count``."""
    near, far = 1, 1
    while near + far - 1 < count:
        near, far = far, near + far
    return near, far
