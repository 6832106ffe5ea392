"""Parts of a dataset that are drawn by a hash of each example's own name.

No random generator is asked for all examples at once, where one more example would change what is drawn
for every other. docs/privacy.md says what that means for the guarantee.
"""

import hashlib
from functools import lru_cache

from dpsweep.base.files import canonical_json

_NUMBERS = 2**64


def draw(*name: str | int) -> int:
    """Return a number from 0 to 2^64 - 1 that depends on a name alone, and looks random.

    Args:
        name: what an example is called, and what is drawn for: another purpose, another number.
    """
    digest = hashlib.sha256(canonical_json(name).encode()).digest()
    return int.from_bytes(digest[:8], "big")


def is_within(share: float, *name: str | int) -> bool:
    """Whether the example of this name is in a share of all: no other example has a say in it.

    Args:
        share: above 0, at most 1, which takes every example.
        name: as for `draw`.
    """
    return draw(*name) < share * _NUMBERS


@lru_cache(maxsize=64)
def held_out_rows(train_size: int, share: float) -> tuple[int, ...]:
    """The rows of a training set that are held out to select on, ascending.

    >>> len(held_out_rows(train_size=1000, share=0.1))
    102

    They are known before the data is: a row is held out by its number alone.

    Args:
        train_size: rows in all.
        share: the share to hold out; 0 holds out none.
    """
    return tuple(row for row in range(train_size) if is_within(share, "holdout", row))
