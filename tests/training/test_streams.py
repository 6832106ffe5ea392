import itertools
import random

import numpy as np
import torch

from dpsweep.training.randomness import new_secret, numpy_stream, stream_key


def test_streams_are_equal_for_equal_names_only() -> None:
    names = [("a",), ("b",), ("a", 1), ("a", "1"), ("a1",), ("a", 1, 1), (1, "a"), ("", "a")]
    keys = [stream_key(*name) for name in names]
    assert keys == [stream_key(*name) for name in names]
    assert len(set(keys)) == len(names)


def test_keys_are_the_same_everywhere() -> None:
    """Stored results stay reproducible only as long as these numbers do not change."""
    assert stream_key("noise", 1) == 0xB8B4A5992D500EC10B456F75B7FE7494
    assert stream_key("noise", 1, secret=b"hidden") == 0x46544AB60B3B9B78AAD5E2C0AE53E498
    assert numpy_stream("noise", 1).standard_normal(3).tolist() == [
        0.5699868800974205,
        -0.7348925452422456,
        -0.27001321437183695,
    ]


def test_keys_have_128_bits() -> None:
    bits = [format(stream_key(part), "0128b") for part in range(4000)]
    shares = [np.mean([row[place] == "1" for row in bits]) for place in range(128)]
    # All bits vary: 5 standard deviations of a fair coin.
    assert max(abs(share - 0.5) for share in shares) < 5 * 0.5 / np.sqrt(4000)


def test_a_secret_gives_another_stream() -> None:
    secrets = [new_secret() for _ in range(100)]
    assert all(len(secret) == 32 for secret in secrets)
    keys = {stream_key("noise", secret=secret) for secret in [b"", *secrets]}
    assert len(keys) == 101


def test_streams_do_not_touch_global_state() -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    numpy_stream("a").normal(size=3)
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()
    assert before[2] == random.getstate()


def test_streams_are_uncorrelated() -> None:
    draws = [numpy_stream("noise", name).normal(size=10_000) for name in range(6)]
    assert np.array_equal(draws[0], numpy_stream("noise", 0).normal(size=10_000))
    for first, second in itertools.combinations(draws, 2):
        assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(10_000)
