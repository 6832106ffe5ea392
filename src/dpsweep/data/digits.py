"""The handwritten digits that ship inside scikit-learn: the private data of the demo.

1,797 grey 8 x 8 images of the UCI "Optical Recognition of Handwritten Digits" test set (Alpaydin
and Kaynak 1998). Each pixel counts the ink of a 4 x 4 block of a 32 x 32 bitmap, so it is 0 to 16.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpsweep.data.write import Split

SIZE = 8
"""Height and width, pixels."""
INK_LEVELS = 16
"""The largest block count; it becomes 255."""


def load_digits_splits(
    test_share: float,
    seed: int,
    *,
    digits: Sequence[int] = range(10),
    train_share: float = 1.0,
    imbalance: float = 1.0,
) -> tuple[Split, Split]:
    """Return the stratified (training, test) split of the digits, or of some of them.

    Inputs are uint8 (examples, 8, 8, 1): ``round(255 * count / 16)``. The split depends on
    ``seed`` and ``test_share`` alone, so that no variant trains on a test image of another; all
    ten digits have ``ceil(test_share * 1797)`` test images.

    Args:
        test_share: share of all digits that is the test set.
        seed: of the split.
        digits: the classes, in order: the first becomes label 0.
        train_share: share of every class's training images that is kept.
        imbalance: of K classes, class k keeps ``imbalance ** (-k / (K - 1))`` of its training
            images: a long tail as of Cui et al. 2019 (arXiv:1901.05555). The test set stays whole.
    """
    # scikit-learn takes a second to import and only the preparation of this dataset needs it.
    from sklearn.datasets import load_digits  # noqa: PLC0415
    from sklearn.model_selection import train_test_split  # noqa: PLC0415

    source = load_digits()
    inputs = np.rint(source.images * (255 / INK_LEVELS)).astype(np.uint8)[..., None]
    train_inputs, test_inputs, train_digits, test_digits = train_test_split(
        inputs,
        source.target,
        test_size=test_share,
        stratify=source.target,
        random_state=seed,
    )
    kept = []
    for label, digit in enumerate(digits):
        share = train_share * imbalance ** (-label / (len(digits) - 1))
        members = np.flatnonzero(train_digits == digit)
        kept.append(members[: max(1, round(share * len(members)))])
    train = np.sort(np.concatenate(kept))
    test = np.flatnonzero(np.isin(test_digits, digits))
    return (
        Split(train_inputs[train], _labels(train_digits[train], digits)),
        Split(test_inputs[test], _labels(test_digits[test], digits)),
    )


def _labels(values: npt.NDArray[np.int64], digits: Sequence[int]) -> npt.NDArray[np.int64]:
    return np.array([list(digits).index(value) for value in values], dtype=np.int64)
