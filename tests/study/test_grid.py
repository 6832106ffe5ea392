"""The cells of selections and figures, and their order."""

from pathlib import Path

import pytest
from tests.study.small import SMALL, Edits, load_small

from dpsweep.study import Cell
from dpsweep.study.grid import (
    Grid,
    MistakeError,
    NotDrawnError,
    Selection,
    baseline,
    by_dataset,
    few,
    neighbours,
    smallest_batch,
    usual,
)


def cells(grid: Grid) -> list[Cell]:
    return Selection.of(grid).cells()


def test_defaults_are_the_usual_epochs_and_all_values_of_other_axes(tmp_path: Path) -> None:
    study = load_small(tmp_path, {})
    found = cells(study.grid())
    # Two epsilons, three B, three C. With AUTO-S, most cells are trained for 2 epochs.
    assert len(found) == 2 * 3 * 3
    assert {cell.epochs for cell in found} == {2}
    assert found[0] == Cell("digits_pretrained_film", 1, 2, 64, 0.1)
    assert found[-1] == Cell("digits_pretrained_film", 8, 2, "full", 10)
    assert cells(study.grid(several=("epochs",))) == study.sweep_cells("flat")


NO_TARGETS: Edits = {"figures": {}, "tables": {}}
FLAT = SMALL["sweeps"]["flat"] | {"epochs": [2]}
IRREGULAR: Edits = NO_TARGETS | {
    # C = 100 was trained at one batch size only, and epsilon = 8 not at C = 10.
    "sweeps/flat": FLAT | {"clipping_bound": [0.1, 1]},
    "sweeps/ten": FLAT | {"epsilon": [1], "clipping_bound": [10]},
    "sweeps/far": FLAT | {"batch_size": [64], "clipping_bound": [100]},
}


def test_a_choice_leaves_only_values_that_exist_with_it(tmp_path: Path) -> None:
    grid = load_small(tmp_path, IRREGULAR).grid()
    assert grid.clipping_bound == [0.1, 1, 10, 100]
    assert grid.at(epsilon=8.0).clipping_bound == [0.1, 1, 100]
    assert grid.at(epsilon=[1.0, 8.0], batch_size=256).clipping_bound == [0.1, 1]
    assert grid.at(clipping_bound=100.0).batch_size == [64]
    assert grid.at(clipping_bound=[1.0, 10.0]).epsilon == [1]
    with pytest.raises(MistakeError, match=r"clipping_bound: found 10; allowed .*: 0.1, 1, 100"):
        grid.at(epsilon=8.0, clipping_bound=10.0)


def test_axes_that_are_drawn_keep_several_values(tmp_path: Path) -> None:
    study = load_small(tmp_path, IRREGULAR)
    # At C = 100 there is one batch size, so a map of C and B omits it.
    assert study.grid(several=("clipping_bound", "batch_size")).clipping_bound == [0.1, 1, 10]
    one = study.grid(clipping="automatic", several=("epochs",))
    with pytest.raises(NotDrawnError, match="has one number of epochs, 2"):
        one.epochs  # noqa: B018


def test_grids_of_a_dataset_share_what_a_rule_chooses(tmp_path: Path) -> None:
    edits = NO_TARGETS | {"sweeps/flat/epochs": [4, 8], "sweeps/automatic/epochs": [2, 4]}
    study = load_small(tmp_path, edits)
    flat, automatic = study.grid(), study.grid(clipping="automatic")
    # Alone, the grid of AUTO-S would take the 4 epochs that most cells of the dataset have, too.
    both = by_dataset([flat, automatic], epochs=usual)
    assert [each.epochs for each in both] == [[4], [4]]
    apart = load_small(tmp_path, edits | {"sweeps/automatic/epochs": [2, 8]})
    both = by_dataset([apart.grid(), apart.grid(clipping="automatic")], epochs=few)
    assert [each.epochs for each in both] == [[8], [8]]  # alone: 4 and 2
    kept = by_dataset([flat.at(epochs=8), automatic], epochs=few)
    assert [each.epochs for each in kept] == [[8], [2]]


def test_neighbours_and_baseline(tmp_path: Path) -> None:
    bounds = NO_TARGETS | {"sweeps/flat/clipping_bound": [0.01, 0.1, 2, 3, 10]}
    grid = load_small(tmp_path, bounds).grid()
    assert (baseline([grid]), neighbours([grid])) == (2, [0.1, 2, 3])
    given = bounds | {"roles/neighbours": {"film": [0.1, 3, 10]}}
    grid = load_small(tmp_path, given).grid()
    assert (baseline([grid]), neighbours([grid])) == (3, [0.1, 3, 10])
    wrong = bounds | {"roles/neighbours": {"film": [0.1, 4, 10]}}
    with pytest.raises(MistakeError, match=r"roles\.neighbours\.film: found 4; allowed .*: 0.01, "):
        neighbours([load_small(tmp_path, wrong).grid()])


def test_without_batches_of_few_steps_the_largest_one_is_drawn(tmp_path: Path) -> None:
    """An epoch of 1,347 examples has at most 100 steps from B = 14 on."""
    for sizes, expected in (([4, 8], 8), ([4, 8, 64, 256], 64)):
        study = load_small(tmp_path, NO_TARGETS | {"sweeps/flat/batch_size": sizes})
        assert smallest_batch([study.grid()]) == expected
