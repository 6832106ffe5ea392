"""Hashed n-grams of the bytes of a text, a fixed featuriser, with a linear head.

Weinberger et al. (2009), "Feature Hashing for Large Scale Multitask Learning": each n-gram adds +1 or -1 to
one of a fixed number of features, both by its hash. This is a random projection of all counts of n-grams,
whose inner products are those of the counts in the mean. N-grams of bytes keep parts of words, as in
Bojanowski et al. (2017), "Enriching Word Vectors with Subword Information". No number was learned from data.
"""

from typing import cast

import torch
from torch import Tensor, nn

from dpsweep.data.prepared import PADDING

# The generator splitmix64 (Steele, Lea and Flood 2014); torch has signed integers, which wrap around.
_STEP, _FIRST, _SECOND = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


class HashedNgrams(nn.Module):
    """Features of the n-grams of a text's bytes, and a linear head on them.

    A feature is the signed root of the sum of the signs of its n-grams, because the tenth occurrence of a
    word says less than the first.

    Args:
        num_classes: outputs of the head.
        dimension: number of features.
        shortest: bytes of the shortest n-grams.
        longest: bytes of the longest n-grams.

    Raises:
        ValueError: an argument is out of its range.

    >>> network = HashedNgrams(num_classes=4, dimension=512)
    >>> network.count(torch.tensor([list(b" refund"), list(b" error ")])).shape
    torch.Size([2, 512])
    """

    def __init__(
        self, num_classes: int, dimension: int = 1024, shortest: int = 3, longest: int = 5
    ):
        super().__init__()
        if dimension < 2 or not 1 <= shortest <= longest:
            raise ValueError(
                f"found dimension {dimension}, shortest {shortest}, longest {longest}; allowed: dimension "
                "from 2, 1 <= shortest <= longest"
            )
        self._lengths = range(shortest, longest + 1)
        self.head = nn.Linear(dimension, num_classes)

    def get_classifier(self) -> nn.Module:
        """Return the head, like networks of timm."""
        return self.head

    def forward(self, tokens: Tensor) -> Tensor:
        """Map int64 (B, length), -1 after the end of a text, to logits (B, classes)."""
        return cast(Tensor, self.head(self.count(tokens)))

    def count(self, tokens: Tensor) -> Tensor:
        """Return the inputs of the head, float32 (B, dimension)."""
        texts, dimension = len(tokens), self.head.in_features
        features = torch.zeros(texts, dimension, device=tokens.device)
        for length in self._lengths:
            if tokens.shape[1] < length:
                break
            ngrams = tokens.long().unfold(1, length, 1)
            hashes = torch.full_like(ngrams[..., 0], length)
            for each in range(length):
                hashes = _mixed(hashes + ngrams[..., each])
            inside = ngrams[..., -1] != PADDING
            signs = (1 - 2 * (hashes & 1)) * inside
            features.scatter_add_(1, (hashes >> 1) % dimension, signs.to(features.dtype))
        return features.sign() * features.abs().sqrt()

    def made_up(self, examples: int, length: int) -> Tensor:
        """Return texts of random bytes, int32 (examples, length), without padding."""
        random = torch.Generator().manual_seed(0)
        return torch.randint(256, (examples, length), generator=random, dtype=torch.int32)


def _mixed(numbers: Tensor) -> Tensor:
    """Return hashes of 64-bit integers, not negative."""
    numbers = numbers + _STEP
    numbers = (numbers ^ (numbers >> 30 & (1 << 34) - 1)) * _FIRST
    numbers = (numbers ^ (numbers >> 27 & (1 << 37) - 1)) * _SECOND
    return (numbers ^ (numbers >> 31 & (1 << 33) - 1)) & (1 << 63) - 1
