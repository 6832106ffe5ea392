"""The search for the best learning rate on a grid along which accuracy rises and falls."""

from hypothesis import given
from hypothesis import strategies as st

from dpsweep.study.sweeps import bracket_maximum, bracket_trials

grids = st.lists(st.floats(0, 1), min_size=1, max_size=40)


@given(grids, st.integers(0, 39))
def test_it_finds_the_peak_of_a_unimodal_grid_with_few_trials(
    heights: list[float], turn: int
) -> None:
    distinct = sorted(set(heights))
    peak = turn % len(distinct)
    # Strictly rising to the peak, strictly falling after it.
    values = [*distinct[:peak], *reversed(distinct[peak:])]
    calls: list[int] = []

    def score(position: int) -> float:
        calls.append(position)
        return values[position]

    assert values[bracket_maximum(len(values), score)] == max(values)
    assert len(calls) == len(set(calls)) <= bracket_trials(len(values))


@given(grids)
def test_on_any_grid_it_returns_the_best_computed_value(values: list[float]) -> None:
    seen: dict[int, float] = {}

    def score(position: int) -> float:
        seen[position] = values[position]
        return values[position]

    best = bracket_maximum(len(values), score)
    assert seen[best] == max(seen.values())
    assert best == min(position for position in seen if seen[position] == seen[best])


def test_trials_of_the_grids_of_the_study() -> None:
    assert [bracket_trials(count) for count in (1, 2, 3, 7, 8, 10, 12)] == [1, 2, 3, 4, 5, 5, 5]
