"""Names of cells, and numbers of optimizer steps."""

import math
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsweep.study.cells import Cell, Problem, optimizer_steps

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
    """So different cells have different names."""
    assert Cell.parse(cell.problem, cell.name) == cell
    # The name is one folder, and needs no quotes in a shell.
    assert Path(cell.name).name == cell.name and len(cell.name) < 100
    assert not set(cell.name) & set(" /\\*?'\"$;&|<>{}")


def test_another_optimizer_than_adam_is_another_problem() -> None:
    names = [Problem("digits", "vit", "film", each).name for each in ("adam", "sgd")]
    assert names == ["digits_vit_film", "digits_vit_film_sgd"]


def test_invalid_cell_names_are_refused() -> None:
    for name in (
        *("", "eps8", "eps8_epochs8_B256", "eps8_epochs8.5_B256_C1", "eps8_epochs8_Bhalf_C1"),
        *("eps8_epochs8_B256_Cflat", "xeps8_epochs8_B256_C1", "eps8_epochs8_B256_C1_seed1"),
    ):
        with pytest.raises(ValueError, match=r"."):
            Cell.parse("digits_vit_film", name)


# N, and B up to N, often the full batch, with one step an epoch.
SIZES = st.integers(1, 200_000).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(1, n) | st.just(n))
)


@given(SIZES, st.integers(1, 64))
def test_steps_match_the_epochs_to_half_a_batch_or_cover_every_epoch(
    sizes: tuple[int, int], epochs: int
) -> None:
    train_size, batch_size = sizes
    steps = optimizer_steps(train_size, batch_size, epochs, "round")
    exact = Fraction(epochs * train_size, batch_size)
    assert exact - Fraction(1, 2) < steps <= exact + Fraction(1, 2)  # halves are rounded up
    assert steps >= 1
    covering = optimizer_steps(train_size, batch_size, epochs, "ceil")
    per_epoch, rest = divmod(covering, epochs)
    assert rest == 0
    assert (per_epoch - 1) * batch_size < train_size <= per_epoch * batch_size
    assert covering >= steps


@pytest.mark.parametrize(
    ("batch", "epochs", "rounding"),
    [(11, 1, "round"), (0, 1, "round"), (5, 0, "ceil"), (5, 1, "floor")],
)
def test_impossible_steps_are_refused(batch: int, epochs: int, rounding: str) -> None:
    with pytest.raises(ValueError, match=rf"found batch_size {batch}, .*; allowed: .* 1\.\.10, "):
        optimizer_steps(10, batch, epochs, rounding)
