"""Names of cells, and numbers of optimizer steps."""

import math
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsweep.study.cells import Cell, Problem, optimizer_steps
from dpsweep.study.paths import Paths

POSITIVE = st.floats(min_value=1e-12, max_value=1e12, exclude_min=True)
CELLS = st.builds(
    Cell,
    problem=st.just("digits_vit_film"),
    epsilon=POSITIVE | st.just(math.inf) | st.integers(1, 100).map(float),
    epochs=st.integers(1, 10_000),
    batch_size=st.integers(1, 10**9) | st.just("full"),
    clipping_bound=POSITIVE | st.sampled_from(["automatic", "none"]),
)


@given(CELLS)
def test_a_cell_is_parsed_from_its_name(cell: Cell) -> None:
    assert Cell.parse(cell.problem, cell.name) == cell
    # The name is one folder, and needs no quotes in a shell.
    assert Path(cell.name).name == cell.name and len(cell.name) < 100
    assert not set(cell.name) & set(" /\\*?'\"$;&|<>{}")


@given(CELLS, CELLS)
def test_different_cells_have_different_folders(one: Cell, other: Cell) -> None:
    paths = Paths(Path("results"))
    assert (paths.cell(one) == paths.cell(other)) == (one == other)


def test_another_optimizer_than_adam_is_another_problem() -> None:
    names = [Problem("digits", "vit", "film", each).name for each in ("adam", "sgd")]
    assert names == ["digits_vit_film", "digits_vit_film_sgd"]


@pytest.mark.parametrize(
    "name",
    [
        *("", "eps8", "eps8_epochs8_B256", "eps8_epochs8.5_B256_C1", "eps8_epochs8_Bhalf_C1"),
        *("eps8_epochs8_B256_Cflat", "xeps8_epochs8_B256_C1", "eps8_epochs8_B256_C1_seed1"),
    ],
)
def test_invalid_cell_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Cell.parse("digits_vit_film", name)


# -- optimizer steps -----------------------------------------------------------------------

# N, and B up to N, often the full batch, with one step an epoch.
SIZES = st.integers(1, 200_000).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(1, n) | st.just(n))
)
EPOCHS = st.integers(1, 64)


@given(SIZES, EPOCHS)
def test_rounded_steps_match_the_epochs_to_half_a_batch(
    sizes: tuple[int, int], epochs: int
) -> None:
    train_size, batch_size = sizes
    steps = optimizer_steps(train_size, batch_size, epochs, "round")
    exact = Fraction(epochs * train_size, batch_size)
    assert abs(steps - exact) <= Fraction(1, 2)
    assert steps > exact - Fraction(1, 2)  # halves are rounded up
    assert steps >= 1


@given(SIZES, EPOCHS)
def test_steps_rounded_up_cover_every_epoch(sizes: tuple[int, int], epochs: int) -> None:
    train_size, batch_size = sizes
    steps = optimizer_steps(train_size, batch_size, epochs, "ceil")
    per_epoch, rest = divmod(steps, epochs)
    assert rest == 0
    assert (per_epoch - 1) * batch_size < train_size <= per_epoch * batch_size
    assert steps >= optimizer_steps(train_size, batch_size, epochs, "round")


@pytest.mark.parametrize(
    ("train_size", "batch_size", "epochs", "rounding"),
    [(10, 11, 1, "round"), (10, 0, 1, "round"), (10, 5, 0, "round"), (10, 5, 1, "floor")],
)
def test_impossible_steps_are_refused(
    train_size: int, batch_size: int, epochs: int, rounding: str
) -> None:
    with pytest.raises(ValueError, match="found"):
        optimizer_steps(train_size, batch_size, epochs, rounding)
