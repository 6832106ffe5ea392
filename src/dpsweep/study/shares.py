"""Parts of a dataset, drawn by a hash of each example's own name.

With one random generator for all examples, one more example would change the draws of all others.
docs/privacy.md explains what this means for the guarantee.
"""

import hashlib
from functools import lru_cache

from dpsweep.base.files import canonical_json

_NUMBERS = 2**64


def draw(*name: str | int) -> int:
    """Return a pseudorandom number from 0 to 2^64 - 1 that depends only on a name.

    Args:
        name: of the purpose and of the example; other purposes give other numbers.
    """
    digest = hashlib.sha256(canonical_json(name).encode()).digest()
    return int.from_bytes(digest[:8], "big")


def is_within(share: float, *name: str | int) -> bool:
    """Return whether an example belongs to a random share of all, independently of other examples.

    Args:
        share: above 0, at most 1 (every example).
        name: as for `draw`.
    """
    return draw(*name) < share * _NUMBERS


@lru_cache(maxsize=64)
def held_out_rows(train_size: int, share: float) -> tuple[int, ...]:
    """Return the rows of a training set that are held out for selection, ascending.

    >>> len(held_out_rows(train_size=1000, share=0.1))
    102

    They do not depend on the data, only on row numbers.

    Args:
        train_size: number of rows.
        share: the share to hold out; 0 holds out none.
    """
    return tuple(row for row in range(train_size) if is_within(share, "holdout", row))
