"""The handwritten digits in scikit-learn: the private data of the demo.

1,797 grey 8 x 8 images of the UCI "Optical Recognition of Handwritten Digits" test set (Alpaydin
and Kaynak 1998). Each pixel counts the ink of a 4 x 4 block of a 32 x 32 bitmap: 0 to 16.
"""

from importlib.metadata import version

import numpy as np

from dpsweep.base.errors import DpsweepError
from dpsweep.demo import Generated
from dpsweep.study.datasets import DigitsSource

_SIZE = 8
"""Height and width, pixels."""
INK_LEVELS = 16
"""The largest block count; it becomes 255."""


def load_digits(source: DigitsSource, size: int = _SIZE) -> Generated:
    """Return a stratified split of all or some digits.

    Inputs are uint8 (examples, 8, 8, 1): ``round(255 * count / 16)``. The split depends only on ``seed``
    and ``test_share``, so no variant of the dataset trains on a test image of another variant. With all
    ten digits there are ``ceil(test_share * 1797)`` test images.

    Class k of K keeps ``imbalance ** (-k / (K - 1))`` of its training images: a long tail as in
    Cui et al. 2019 (arXiv:1901.05555). The test set is not reduced.

    Args:
        source: which digits, and how many of them.
        size: height and width according to the study, pixels.

    Raises:
        DpsweepError: the size is not 8.
    """
    # Importing scikit-learn takes a second, and only this dataset needs it.
    from sklearn import datasets  # noqa: PLC0415
    from sklearn.model_selection import train_test_split  # noqa: PLC0415

    if size != _SIZE:
        raise DpsweepError(
            f"image_size: found {size}, allowed: {_SIZE}, the size of the images of {source.kind}"
        )
    images = datasets.load_digits()
    inputs = np.rint(images.images * (255 / INK_LEVELS)).astype(np.uint8)[..., None]
    train_inputs, test_inputs, train_digits, test_digits = train_test_split(
        inputs,
        images.target,
        test_size=source.test_share,
        stratify=images.target,
        random_state=source.seed,
    )
    kept = []
    for label, digit in enumerate(source.digits):
        share = source.train_share * source.imbalance ** (-label / (len(source.digits) - 1))
        members = np.flatnonzero(train_digits == digit)
        kept.append(members[: max(1, round(share * len(members)))])
    train = np.sort(np.concatenate(kept))
    test = np.flatnonzero(np.isin(test_digits, source.digits))
    # searchsorted works because the digits of the source are ascending.
    return Generated(
        train=(train_inputs[train], np.searchsorted(source.digits, train_digits[train])),
        test=(test_inputs[test], np.searchsorted(source.digits, test_digits[test])),
        classes=list(map(str, source.digits)),
        origin="scikit-learn, load_digits",
        revision=version("scikit-learn"),
    )
