"""Hashed n-grams: what they count, and that they never change, because released models need the same ones."""

from collections import Counter

import pytest
import torch
from torch import Tensor

from dpsweep.data.tokenizer import byte_tokenizer
from dpsweep.models.featurisers import HashedNgrams

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
