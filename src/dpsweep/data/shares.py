"""A part of a dataset with its classes in proportion."""

import numpy as np
import numpy.typing as npt

from dpsweep.data.prepared import DatasetError


def stratified_share(
    labels: npt.NDArray[np.int64], share: float, seed: int
) -> npt.NDArray[np.int64]:
    """Return the sorted indices of a share of the examples.

    Raises:
        DatasetError: the share leaves classes without an example.
    """
    indices = np.arange(len(labels))
    if share < 1:
        # It takes a second to import, and few datasets need it.
        from sklearn.model_selection import train_test_split  # noqa: PLC0415

        try:
            indices, _ = train_test_split(
                indices, train_size=share, stratify=labels, random_state=seed
            )
        except ValueError as error:
            raise DatasetError(f"a share of {share} of {len(labels)} examples: {error}") from error
    return np.sort(indices)
