"""The noise of a step: normal, with its tails, and a function of the stream and the step."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from dpsweep.training import randomness as noise_module
from dpsweep.training.randomness import GaussianNoise

SIZE = 1 << 20


class GpuDraws(GaussianNoise):
    """Draws as on a GPU, on the CPU."""

    _on_cpu = GaussianNoise._on_gpu


KINDS = pytest.mark.parametrize("kind", [GaussianNoise, GpuDraws])


def drawn(noise: GaussianNoise, step: int, size: int = SIZE) -> Tensor:
    total = torch.zeros(size, dtype=torch.float64)
    noise.add_to(total, step, 1.0)
    return total


def test_tails_are_there() -> None:
    """Step 164 of this stream has a number that no float32 ``torch.randn`` can be."""
    largest = float(drawn(GaussianNoise("tails"), 164).abs().max())
    assert largest == pytest.approx(6.207287798192289, rel=1e-12)


@KINDS
def test_numbers_are_normal_to_the_tails(kind: type[GaussianNoise]) -> None:
    found = drawn(kind("normal"), 3).numpy()
    assert stats.kstest(found, "norm").pvalue > 1e-6
    assert abs(found.var() - 1) < 5 * np.sqrt(2 / SIZE)
    for bound in (3.0, 4.0, 4.5):
        expected = SIZE * 2 * stats.norm.sf(bound)
        assert abs((np.abs(found) > bound).sum() - expected) < 5 * np.sqrt(expected)
    # Numbers of 24 bits would repeat a thousand times among a million.
    assert len(np.unique(found)) == SIZE


def test_constants() -> None:
    """Stored results stay reproducible only as long as these numbers do not change."""
    assert drawn(GaussianNoise("constants"), 0, 2).tolist() == [
        0.6280495373273741,
        -0.8920446566227902,
    ]
    assert drawn(GaussianNoise("constants"), 7, 2).tolist() == [
        0.41997358773755794,
        0.9165721733800157,
    ]
    hidden = GaussianNoise("constants", secret=b"hidden")
    assert drawn(hidden, 0, 2).tolist() == [
        0.2901579397115981,
        -0.9130582128147445,
    ]


@KINDS
def test_every_step_and_stream_has_its_own(kind: type[GaussianNoise]) -> None:
    streams = [kind("a"), kind("b"), kind("a", secret=b"x"), kind("a", secret=b"y")]
    draws = [drawn(noise, step, 5000) for noise in streams for step in (0, 1, 2, 1000)]
    correlations = np.corrcoef(torch.stack(draws).numpy())[np.triu_indices(len(draws), 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(5000)


@KINDS
def test_a_step_is_drawn_alike_whatever_was_drawn_before(kind: type[GaussianNoise]) -> None:
    used = kind("a")
    for step in range(5):
        drawn(used, step, 100)
    assert torch.equal(drawn(used, 9, 100), drawn(kind("a"), 9, 100))


@KINDS
def test_noise_does_not_lie_in_memory_at_once(
    kind: type[GaussianNoise], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks continue each other: no number is drawn twice, none is missing."""
    monkeypatch.setattr(noise_module, "_CHUNK", 1000)
    found = drawn(kind("a"), 0, 4321)
    assert len(found.unique()) == 4321
    assert stats.kstest(found.numpy(), "norm").pvalue > 1e-6


def test_noise_is_added_and_scaled() -> None:
    total = torch.full((1000,), 5.0, dtype=torch.float64)
    GaussianNoise("a").add_to(total, 4, 0.25)
    torch.testing.assert_close(total, 5 + 0.25 * drawn(GaussianNoise("a"), 4, 1000))


def test_nothing_to_add_to() -> None:
    GaussianNoise("a").add_to(torch.zeros(0, dtype=torch.float64), 0, 1.0)
