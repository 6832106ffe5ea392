"""Tests of random shares of a dataset, and of the effect of an additional example."""

import numpy as np

from dpsweep.data.examples import cut_test_set, stratified_share
from dpsweep.study.datasets import held_out_rows, is_within


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


def test_a_class_keeps_one_example_for_training() -> None:
    """Without one, no network could learn it; the other examples stay where they were drawn."""
    for seed in range(40):
        names = [f"text {number}" for number in range(60)]
        labels = np.array([0] * 50 + [1] * 3 + [2] * 6 + [3])
        names[52] = names[51]  # examples of a name stay together
        drawn = [is_within(0.5, seed, "test", name) for name in names]
        train, test = cut_test_set(names, labels, 0.5, seed)
        assert sorted([*train, *test]) == [*range(60)]
        assert not {names[place] for place in train} & {names[place] for place in test}
        assert set(labels[train].tolist()) == {0, 1, 2, 3}
        moved = [place for place in range(60) if drawn[place] != (place in test)]
        assert all(drawn[place] for place in moved)
        for label in range(4):
            of_class = np.flatnonzero(labels == label)
            alone = all(drawn[place] for place in of_class)
            assert len({names[place] for place in moved if labels[place] == label}) == alone


def test_held_out_rows_depend_on_their_number_only() -> None:
    for size in (1, 10, 1347):
        rows = held_out_rows(size, 0.1)
        assert held_out_rows(size + 1, 0.1)[: len(rows)] == rows
        assert set(rows) <= set(range(size))
    # Also of the rows of a large dataset, in each part of it.
    parts = np.histogram(held_out_rows(400_000, 0.1), bins=8, range=(0, 400_000))[0]
    assert (abs(parts - 5000) < 4 * 67).all()
    assert {row for row in held_out_rows(400_000, 0.1) if row >= 399_900} == {
        row for row in range(399_900, 400_000) if is_within(0.1, "holdout", row)
    }
    assert set(held_out_rows(1000, 0.1)) < set(held_out_rows(1000, 0.2))
    assert held_out_rows(1000, 0) == ()
