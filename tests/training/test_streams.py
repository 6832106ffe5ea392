import itertools
import random

import numpy as np
import pytest
import torch

from dpsweep.training.streams import numpy_stream, stream_seed, torch_stream


def test_streams_are_equal_for_equal_names_only() -> None:
    names = [("a",), ("b",), ("a", 1), ("a", "1"), ("a1",), ("a", 1, 1), (1, "a"), ("", "a")]
    seeds = [stream_seed(*name) for name in names]
    assert seeds == [stream_seed(*name) for name in names]
    assert len(set(seeds)) == len(names)


def test_seed_is_the_same_everywhere() -> None:
    """Stored results stay reproducible only as long as these numbers do not change."""
    assert stream_seed("noise", 1) == stream_seed("noise", 1)
    assert min(stream_seed(part) for part in range(100)) >= 0
    bits = [format(stream_seed(part), "064b") for part in range(4000)]
    shares = [np.mean([row[place] == "1" for row in bits]) for place in range(64)]
    # All 64 bits vary: 5 standard deviations of a fair coin.
    assert max(abs(share - 0.5) for share in shares) < 5 * 0.5 / np.sqrt(4000)


def test_streams_do_not_touch_global_state() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    torch_stream("cpu", "a").get_state()
    torch.randn(3, generator=torch_stream("cpu", "a"))
    numpy_stream("a").normal(size=3)
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()
    assert before[2] == random.getstate()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_streams_are_uncorrelated(kind: str) -> None:
    def draw(name: int) -> np.ndarray:
        if kind == "numpy":
            return numpy_stream("noise", name).normal(size=10_000)
        return torch.randn(10_000, generator=torch_stream("cpu", "noise", name)).numpy()

    draws = [draw(name) for name in range(6)]
    assert np.array_equal(draws[0], draw(0))
    for first, second in itertools.combinations(draws, 2):
        assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(10_000)
