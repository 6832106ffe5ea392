"""``config.yaml``, the paper's study: its targets, its grids, its numbers."""

import itertools
import math
from pathlib import Path

import pytest

from dpsweep.planning.outputs import Outputs
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths
from dpsweep.tables.comparison import ComparisonTable

# -- grids ---------------------------------------------------------------------------------

# Table A1: sweep | largest power of two of B | learning rates: first, last, count | C.
# The smallest B is 2^8, powers of two are below N, and every sweep has the full batch.
TABLE_A1 = """
cifar100_vit-tiny_film      |14| 0.001  0.02  8  | 1e-5 1e-4 1e-3 1e-2 0.1 1 10
cifar100_vit-base_film      |14| 0.001  0.02  8  | 1e-5 1e-4 1e-3 1e-2 0.1 1 10
cifar100_resnet50_film      |14| 0.0005 0.01  10 | 1e-5 1e-4 1e-3 1e-2 0.1 1 10
cifar100-10pct_vit-tiny_film|14| 0.001  0.02  8  | 1e-4 1e-2 0.1 1 5 10
cifar100-10pct_vit-base_film|14| 0.001  0.02  8  | 1e-4 1e-2 0.1 1 5 10
cifar100-10pct_resnet50_film|14| 0.0005 0.01  10 | 1e-3 1e-2 0.1 1 10 26 42
sun397_vit-tiny_film        |16| 0.001  0.02  8  | 0.1 1 10 12 14 18 26 42
sun397_vit-base_film        |16| 0.001  0.02  8  | 0.1 1 10 26 42
sun397_vit-tiny_lora-r1     |16| 0.005  0.025 8  | 0.1 1 10 12 14 18 26 42
sun397_vit-base_lora-r1     |16| 0.005  0.025 8  | 0.1 1 10 26 42
sun397_vit-tiny_all         |12| 0.0001 0.002 10 | 1e-3 1e-2 0.1 1 10 25 29.5 34.22 40.03 46.84 54.79 64.11 75
sun397_vit-base_all         |12| 0.0001 0.002 10 | 1e-3 1e-2 0.1 1 10 25 29.5 34.22 40.03 46.84 54.79 64.11 75
cassava_vit-tiny_film       |14| 0.001  0.02  8  | 0.1 1 10 26 42
cassava_vit-base_film       |14| 0.001  0.02  8  | 0.1 1 10 26 42
20newsgroups_distilbert_lora|13| 0.001  0.02  8  | 1e-3 1e-2 0.1 1 10 42
cifar10_wrn-16-4_scratch    |12| 0.0001 0.01  10 | 1e-5 1 10 50
sun397_vit-tiny_film_sgd    |12| 0.1    20    10 | 0.1 1 26 42
"""
SIZES = {"sun397": 87_002, "cassava": 7_545, "cifar100": 50_000, "cifar100-10pct": 5_000}
SIZES |= {"cifar10": 50_000, "20newsgroups": 11_314}
ROWS = [[cell.strip() for cell in line.split("|")] for line in TABLE_A1.strip().splitlines()]


@pytest.mark.parametrize(("name", "power", "rates", "bounds"), ROWS, ids=[row[0] for row in ROWS])
def test_grids_are_those_of_table_a1(
    paper: Study, name: str, power: str, rates: str, bounds: str
) -> None:
    sweep = paper.sweeps[name]
    size = SIZES[name.split("_", maxsplit=1)[0]]
    powers = [2**exponent for exponent in range(8, int(power) + 1) if 2**exponent < size]
    assert sweep.batch_size == [*powers, "full"]
    assert sweep.clipping_bound == [float(bound) for bound in bounds.split()]
    first, last, count = map(float, rates.split())
    assert (sweep.learning_rates[0], sweep.learning_rates[-1]) == (first, last)
    assert len(sweep.learning_rates) == count
    for smaller, larger in itertools.pairwise(sweep.learning_rates):
        assert math.isclose(larger / smaller, (last / first) ** (1 / (count - 1)), rel_tol=1e-4)


# -- cells behind targets ------------------------------------------------------------------


def cells(study: Study, name: str) -> set[Cell]:
    target = study.figures.get(name) or study.tables[name]
    return {cell for selection in target.selections() for cell in selection.cells()}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # ten batch sizes; five bounds for ViT-Base, eight for each of two ViT-Tiny panels
        ("fig1_accuracy_heatmaps", 10 * (5 + 8 + 8)),
        # left: ViT-Tiny at two epsilons; right: ViT-Base at 0.25, ViT-Tiny at 0.25 once more
        ("fig2_clipping_vs_difficulty", 10 * (8 + 8 + 5)),
        # six epsilons, C = 1, all batch sizes
        ("fig3_gradnorm_distributions", 6 * 10),
        # three difficulties, three bounds
        ("fig4_perclass_retained_accuracy", 3 * 3 * 10),
        # five epsilons; AUTO-S has one cell, flat clipping one for each bound
        ("fig5_autoclip_vs_tuned", 5 * (10 * (1 + 8) + 8 * (1 + 7) + 6 * (1 + 5))),
        ("tab_autoclip", 5 * (10 * (1 + 8) + 8 * (1 + 7) + 6 * (1 + 5))),
        # five epsilons, five numbers of epochs, eight batch sizes, seven bounds
        ("fig7_cumulative_noise", 5 * 5 * 8 * 7),
        ("eps_cifar100-10pct_resnet50", 2 * 6 * 7),
        ("scratch_heatmaps", 4 * 6 * 4),
        ("tab_lora_rank", 5 * 2 * 10),
        # six epsilons at one batch size and one bound
        ("mean_gradnorm_8epochs", 6),
    ],
)
def test_cells_behind_a_target_counted_by_hand(paper: Study, name: str, expected: int) -> None:
    found = cells(paper, name)
    assert len(found) == expected
    if name in paper.figures:
        files = Outputs(paper, Paths(Path("R"))).figure(name).inputs
        assert sum(file.name.startswith("trials-") for file in files) == expected


def test_every_cell_is_drawn(paper: Study) -> None:
    """AUTO-S was not trained for all of the problems that a figure of the theory compares."""
    assert set(paper.targets.undrawn) <= {"parts of theory_predictions"}
    drawn = {cell for name in (*paper.figures, *paper.tables) for cell in cells(paper, name)}
    assert drawn == set(paper.all_cells())


# -- the paper's numbers -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "count", "row", "numbers"),
    [
        ("tab_lora_rank", 5 * 2, ("8", "ε = 0.5"), (0.3924, None, None)),
        ("tab_autoclip", 3 * 5 * 2, ("Cassava", "2", "Tuned"), (0.759, 0.757, 0.762)),
    ],
)
def test_every_entry_of_a_comparison_has_the_papers_number(
    paper: Study, name: str, count: int, row: tuple[str, ...], numbers: tuple[float | None, ...]
) -> None:
    table = paper.tables[name]
    assert isinstance(table, ComparisonTable)
    found = {(*each.row, each.column): each.reference for each in table._places}
    assert len(found) == len(set(map(repr, found.values()))) == count and None not in found.values()
    reference = found[row]
    assert reference is not None
    assert (reference.value, reference.minimum, reference.maximum) == numbers
    for entry in table.entries:
        assert entry.epochs == [32 if entry.dataset == "cassava" else 8]
