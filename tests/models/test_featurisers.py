"""Fixed features under a linear head: what they are, that they never change, and do not mix examples."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from dpsweep.data.texts import byte_tokenizer
from dpsweep.models.featurisers import HashedNgrams, Scattering, transform
from dpsweep.study.networks import BackboneError, GroupNorm

# -- hashed n-grams ------------------------------------------------------------------------------

TEXTS = ["Please refund the order", "The order  of the printer is late", "ab"]


def tokens_of(texts: list[str]) -> Tensor:
    """Tokens as datasets store them: -1 after the end of a text."""
    found = [byte_tokenizer().encode(text).ids for text in texts]
    return torch.tensor([ids + [-1] * (60 - len(ids)) for ids in found])


def ngrams_of(text: str) -> Counter[str]:
    """The n-grams of a text in lower case, with a space before it and single spaces inside."""
    written = " " + " ".join(text.lower().split())
    return Counter(
        written[start : start + length]
        for length in (3, 4, 5)
        for start in range(len(written) - length + 1)
    )


def test_features_are_the_roots_of_the_numbers_of_ngrams() -> None:
    """With many features no two n-grams meet, so that each has a feature of its own."""
    features = HashedNgrams(2, dimension=2**22).count(tokens_of(TEXTS))
    for text, row in zip(TEXTS, features, strict=True):
        found = sorted((row[row != 0] ** 2).round().int().tolist())
        assert found == sorted(ngrams_of(text).values())
    one, other = map(ngrams_of, TEXTS[:2])
    product = sum((one[each] * other[each]) ** 0.5 for each in one)
    assert features[0] @ features[1] == pytest.approx(product, rel=1e-5)
    signs = features[features != 0].sign()
    assert abs(signs.mean()) < 3 / len(signs) ** 0.5  # as many of both signs


def test_a_text_has_the_same_features_alone_with_others_and_with_more_room() -> None:
    network = HashedNgrams(2, dimension=64)
    tokens = tokens_of(TEXTS)
    together = network.count(tokens)
    for row, expected in zip(tokens, together, strict=True):
        assert torch.equal(network.count(row[row >= 0][None])[0], expected)
        assert torch.equal(network.count(row[None].to(torch.int32))[0], expected)
    assert not network.count(tokens[:, :2]).any()  # shorter than every n-gram


EXPECTED = [1, 0, 1, -1, 0, -2, 0, -1, 0, 1, 1, 0, 0, 0, 2, -1]


def test_features_never_change() -> None:
    """A change would make every released head on them worthless."""
    features = HashedNgrams(2, dimension=16).count(tokens_of(["Refund!"]))
    assert (features[0] * features[0].abs()).round().int().tolist() == EXPECTED


# -- scattering ----------------------------------------------------------------------------------

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


# -- transformations -----------------------------------------------------------------------------


def test_transformations_do_not_mix_examples() -> None:
    features = torch.randn(5, 6, generator=torch.Generator().manual_seed(0))
    for name in (None, "layer-norm", "unit-norm", GroupNorm(kind="group-norm", groups=2)):
        alone = torch.cat([transform(row[None], name) for row in features])
        torch.testing.assert_close(transform(features, name), alone)


def test_group_norm_agrees_with_torch() -> None:
    maps = torch.randn(3, 6, 2, 2, generator=torch.Generator().manual_seed(0))
    found = transform(maps.flatten(1), GroupNorm(kind="group-norm", groups=3))
    torch.testing.assert_close(found, torch.nn.GroupNorm(3, 6)(maps).flatten(1))
    for groups in (5, 24):
        message = f"groups: found {groups}; allowed: a divisor of the 24"
        with pytest.raises(BackboneError, match=message):
            transform(maps.flatten(1), GroupNorm(kind="group-norm", groups=groups))
