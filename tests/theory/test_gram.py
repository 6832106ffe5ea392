"""Gram matrices and what is kept of them, against gradients that are written out."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsweep.theory import ClippedSums, gram_matrix


def batch(seed: int, examples: int = 17, dimension: int = 6) -> np.ndarray:
    """Gradients with something in common, of very different length, and one that is zero."""
    generator = np.random.default_rng(seed)
    gradients = generator.normal(size=(examples, dimension)) + generator.normal(size=dimension)
    gradients *= 10 ** generator.uniform(-2, 2, size=(examples, 1))
    gradients[examples // 2] = 0
    return gradients


@pytest.mark.parametrize("block_bytes", [1, 400, 2**20])
def test_gram_matrix_is_that_of_the_gradients_however_it_is_cut(block_bytes: int) -> None:
    gradients = batch(0)
    np.testing.assert_allclose(
        gram_matrix(gradients, block_bytes), gradients @ gradients.T, rtol=1e-12
    )


def test_gram_matrix_sums_in_float64() -> None:
    gradients = np.array([[1e4] + [1e-1] * 1000], dtype=np.float32)
    exact = (gradients.astype(np.float64) ** 2).sum()
    assert gram_matrix(gradients, 64)[0, 0] == pytest.approx(exact, rel=1e-14)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), examples=st.integers(1, 40), block=st.integers(1, 50))
def test_sums_are_those_of_the_written_out_vectors(seed: int, examples: int, block: int) -> None:
    gradients = batch(seed, examples)
    norms = np.linalg.norm(gradients, axis=1)
    order = [each for each in np.argsort(norms, kind="stable") if norms[each] > 0]
    from_gram = ClippedSums.of(gradients @ gradients.T)
    from_rows = ClippedSums.from_rows(lambda chosen: gradients[chosen], examples, block)
    scale = norms.sum() ** 2 + 1e-300
    for sums in (from_gram, from_rows):
        for count in range(len(order) + 1):
            first, last = gradients[order[:count]], gradients[order[count:]]
            unclipped, clipped = first.sum(0), last.sum(0)
            units = (last / np.linalg.norm(last, axis=1, keepdims=True)).sum(0)
            total = unclipped + clipped
            wanted = {
                "unclipped_square": unclipped @ unclipped,
                "clipped_square": clipped @ clipped,
                "unit_square": units @ units,
                "unit_clipped": units @ clipped,
                "unclipped_unit": unclipped @ units,
                "unclipped_total": unclipped @ total,
                "unit_total": units @ total,
            }
            for name, value in wanted.items():
                size = scale if "unit" not in name else np.sqrt(scale) * examples + examples**2
                found = getattr(sums, name)[count]
                assert found == pytest.approx(value, rel=1e-9, abs=1e-11 * size), name


def test_sums_of_a_zero_batch_are_empty() -> None:
    sums = ClippedSums.of(np.zeros((3, 3)))
    assert len(sums.norms) == 0
    assert sums.total_square == 0
    rows = ClippedSums.from_rows(lambda chosen: np.zeros((len(chosen), 5)), 3, 2)
    assert len(rows.norms) == 0


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_gradients_that_are_not_finite_are_refused(wrong: float) -> None:
    gradients = batch(2)
    gradients[3, 1] = wrong
    with pytest.raises(ValueError, match="1 of 17 gradients are not finite"):
        gram_matrix(gradients)
    with (
        np.errstate(invalid="ignore"),
        pytest.raises(ValueError, match="1 of 17 gradients are not finite"),
    ):
        ClippedSums.of(gradients @ gradients.T)
    with pytest.raises(ValueError, match="gradients are not finite"):
        ClippedSums.from_rows(lambda chosen: gradients[chosen], 17, 4)


def test_4096_gradients_fit_in_2_gigabytes() -> None:
    gradients = np.random.default_rng(3).normal(size=(4096, 64)).astype(np.float32)
    tracemalloc.start()
    ClippedSums.of(gram_matrix(gradients))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2e9


def test_memory_of_rows_does_not_grow_with_the_batch() -> None:
    def rows(chosen: np.ndarray) -> np.ndarray:
        return np.random.default_rng(int(chosen[0])).normal(size=(len(chosen), 100_000))

    tracemalloc.start()
    ClippedSums.from_rows(rows, 64, 8)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # All 64 would take 51 MB; a block takes 6.4 MB.
    assert peak < 45e6
