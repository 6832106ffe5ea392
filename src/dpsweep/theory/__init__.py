"""The paper's theory of clipping (section 4), computed from measured per-example gradients.

Inputs and outputs are plain float64 arrays. All formulas use inner products of the gradients of a batch:

- `ClippedSums`: sums of these inner products;
- `mean_squared_error`, `mse_optimal_clipping`: Theorem 4.1;
- `alignment`, `direction_optimal_clipping`: the same for scale-invariant optimizers.

None of this is private, because it reads raw gradients of the training data. Use it to explain results on
public data, not to choose C on private data.
"""

from dpsweep.theory.optimal_clipping import (
    ClippedSums,
    DirectionOptimum,
    MeanSquaredError,
    alignment,
    direction_optimal_clipping,
    mean_squared_error,
    mse_optimal_clipping,
)

__all__ = [
    "ClippedSums",
    "DirectionOptimum",
    "MeanSquaredError",
    "alignment",
    "direction_optimal_clipping",
    "mean_squared_error",
    "mse_optimal_clipping",
]
