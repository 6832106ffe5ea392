"""The Gram matrix of per-example gradients: the inner product of every two of them."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_BLOCK_BYTES = 2**28


def gram_matrix(gradients: npt.ArrayLike, block_bytes: int = _BLOCK_BYTES) -> Array:
    """Return the inner products of per-example gradients, summed in float64.

    Coordinates are taken a block at a time, so a memory-mapped array is never in memory as a whole:
    for 4,096 examples the result takes 134 MB and a block 268 MB, whatever the dimension.

    Args:
        gradients: shape (B, d), of any float type.
        block_bytes: of float64 coordinates in memory at once.

    Returns:
        Shape (B, B).

    Raises:
        ValueError: not two dimensions, or gradients that are not finite.
    """
    rows = gradients if isinstance(gradients, np.ndarray) else np.asarray(gradients)
    if rows.ndim != 2:
        raise ValueError(f"gradients: found shape {rows.shape}; allowed: (examples, dimension)")
    examples, dimension = rows.shape
    gram = np.zeros((examples, examples))
    step = max(1, block_bytes // (8 * max(examples, 1)))
    for first in range(0, dimension, step):
        block = np.asarray(rows[:, first : first + step], dtype=np.float64)
        with np.errstate(invalid="ignore"):  # told below
            gram += block @ block.T
    finite(np.diagonal(gram))
    return gram


def finite(squared_norms: Array) -> None:
    """Refuse gradients that are not finite.

    Raises:
        ValueError: says how many there are.
    """
    wrong = int((~np.isfinite(squared_norms)).sum())
    if wrong:
        raise ValueError(
            f"{wrong} of {len(squared_norms)} gradients are not finite; leave them out, as training "
            "does"
        )
