"""Tests of random shares of a dataset, and of the effect of an additional example."""

import numpy as np

from dpsweep.config.shares import held_out_rows, is_within
from dpsweep.data.examples import stratified_share


def test_stratified_share_keeps_the_share_of_every_class() -> None:
    labels = np.repeat([0, 1, 2, 3], [500, 95, 10, 2])
    kept = stratified_share(labels, lambda place: [place], 0.1, seed=0)
    assert np.bincount(labels[kept]).tolist() == [50, 10, 1, 1]
    assert kept.tolist() == sorted(set(kept.tolist()))
    assert stratified_share(labels, lambda place: [place], 1.0, 0).tolist() == [*range(607)]
    other = stratified_share(labels, lambda place: [place], 0.1, seed=1)
    assert kept.tolist() != other.tolist()


def test_additional_example_replaces_at_most_one_of_a_stratified_share() -> None:
    labels = np.arange(200) % 3
    called = [f"image {place}" for place in range(200)]

    def share(names: list[str], labels: np.ndarray) -> set[str]:
        return {names[each] for each in stratified_share(labels, lambda i: [names[i]], 0.25, 0)}

    replaced = []
    for place in range(0, 200, 8):  # also before the end
        more = [*called[:place], f"new {place}", *called[place:]]
        after = share(more, np.insert(labels, place, 1))
        replaced.append(len(share(called, labels) - after))
    assert set(replaced) == {0, 1}


def test_held_out_rows_depend_on_their_number_only() -> None:
    for size in (1, 10, 1347):
        rows = held_out_rows(size, 0.1)
        assert held_out_rows(size + 1, 0.1)[: len(rows)] == rows
        assert set(rows) <= set(range(size))
    assert abs(len(held_out_rows(50_000, 0.1)) - 5000) < 4 * 67
    assert set(held_out_rows(1000, 0.1)) < set(held_out_rows(1000, 0.2))
    assert held_out_rows(1000, 0) == ()


def test_share_of_one_contains_everything() -> None:
    assert all(is_within(1.0, "anything", number) for number in range(1000))
