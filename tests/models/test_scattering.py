import math
from pathlib import Path

import numpy as np
import pytest
import torch

from dpsweep.models.featurisers import Scattering

STORED = np.load(Path(__file__).with_name("kymatio.npz"))
"""Two images of 16 x 16 pixels, and their coefficients by Kymatio 0.3.0 for scales and angles."""

# Kymatio divides its filters by 3.1415 instead of pi. Order m is filtered m + 1 times.
RATIO = math.pi / 3.1415


@pytest.mark.parametrize(("scales", "angles"), [(2, 8), (3, 4), (1, 6), (2, 5)])
def test_coefficients_are_those_of_kymatio(scales: int, angles: int) -> None:
    stored = STORED[f"{scales} {angles}"]
    orders = np.full(stored.shape[1], 2)
    orders[: 1 + scales * angles] = 1
    orders[0] = 0
    wanted = stored / RATIO ** (orders + 1)[:, None, None]
    images = torch.from_numpy(STORED["images"])[:, None]
    found = Scattering(2, 16, scales, angles).scatter(images)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), wanted, rtol=0, atol=1e-6)
    assert wanted[:, orders == 2].max(initial=1) > 1e-3


def test_channels_are_scattered_separately() -> None:
    images = torch.from_numpy(STORED["images"])[None]
    network = Scattering(2, 16, in_chans=2)
    apart = [network.scatter(images[:, [channel]]) for channel in (0, 1)]
    torch.testing.assert_close(network.scatter(images), torch.cat(apart, dim=1))


def test_examples_do_not_mix_and_only_the_head_has_parameters() -> None:
    network = Scattering(3, 16)
    images = torch.from_numpy(STORED["images"])[:, None]
    alone = torch.cat([network(image[None]) for image in images])
    torch.testing.assert_close(network(images), alone)
    assert [name for name, _ in network.named_parameters()] == ["head.weight", "head.bias"]
    assert set(network.state_dict()) == {"head.weight", "head.bias"}


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"image_size": 30}, "image_size 30, .* allowed: an image_size of 2 or more times 4"),
        ({"image_size": 4}, "image_size 4, scales 2"),
        ({"scales": 0}, "scales 0, angles 8, in_chans 1"),
        ({"angles": 0}, "angles 0"),
        ({"groups": 2}, "groups 2; .* groups 0 or a divisor of 81 channels"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, int], found: str) -> None:
    with pytest.raises(ValueError, match=found):
        Scattering(2, **arguments)
