from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from dpsweep.data import Split
from dpsweep.data.digits import load_digits as load
from dpsweep.study.config import DigitsSource


def splits(**keys: Any) -> tuple[Split, Split]:
    made = load(DigitsSource(kind="sklearn-digits", **keys))
    return made.train, made.test


def test_split_is_a_stratified_partition_of_the_digits() -> None:
    train, test = splits()
    assert len(train.labels) == 1347
    assert len(test.labels) == 450
    inputs = np.concatenate([train.inputs, test.inputs])
    labels = np.concatenate([train.labels, test.labels])
    assert inputs.dtype == np.uint8 and inputs.shape[1:] == (8, 8, 1)
    assert set(np.unique(inputs)) == {round(255 * ink / 16) for ink in range(17)}
    original = load_digits()
    ink = np.rint(inputs[..., 0] * (16 / 255)).reshape(len(inputs), -1)
    found = sorted(map(tuple, np.column_stack([ink, labels]).astype(int).tolist()))
    wanted = sorted(
        map(tuple, np.column_stack([original.data, original.target]).astype(int).tolist())
    )
    assert found == wanted
    share = np.bincount(test.labels) / np.bincount(labels)
    assert np.all(np.abs(share - 0.25) < 0.01)


def test_split_depends_on_the_seed_alone() -> None:
    first, _ = splits()
    np.random.seed(123)
    again, _ = splits()
    other, _ = splits(seed=1)
    np.testing.assert_array_equal(first.inputs, again.inputs)
    assert not np.array_equal(first.inputs, other.inputs)


def test_a_long_tail_of_some_digits() -> None:
    whole, _ = splits()
    train, test = splits(digits=[3, 5, 9], train_share=0.5, imbalance=16)
    sizes = np.bincount(whole.labels)[[3, 5, 9]]
    shares = np.bincount(train.labels) / sizes
    np.testing.assert_allclose(shares, [0.5, 0.5 / 4, 0.5 / 16], atol=0.5 / sizes.min())
    # The images of a label are those of its digit; the test set is not thinned out.
    digits_of = dict(zip((image.tobytes() for image in whole.inputs), whole.labels, strict=True))
    for image, label in zip(train.inputs, train.labels, strict=True):
        assert digits_of[image.tobytes()] == [3, 5, 9][label]
    _, every = splits()
    assert np.bincount(test.labels).tolist() == np.bincount(every.labels)[[3, 5, 9]].tolist()
