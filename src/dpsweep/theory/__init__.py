"""The paper's theory of clipping (section 4), computed from measured per-example gradients.

Inputs and outputs are plain float64 arrays. All formulas use inner products of the gradients of a batch:

- `gram_matrix`, `softmax_gram`, `ClippedSums`: these inner products, and sums of them;
- `mean_squared_error`, `mse_optimal_clipping`: Theorem 4.1;
- `alignment`, `direction_optimal_clipping`: the same for scale-invariant optimizers;
- `PrivacyEffects`: the direct effect of noise on C*, and its indirect effect through the gradients;
- `progress_bound`, `tuned_progress_bound`, `best_step_size`, `measured_progress`: Theorem 4.2;
- `ConvergenceBound`: the bound of Koloskova et al. (2023), with measured constants;
- `softmax_residuals`, `softmax_smoothness`, `softmax_gradient_deviation`, `smallest_softmax_loss`: its
  constants, and those of Theorem 4.2, for a linear head with softmax.

None of this is private, because it reads raw gradients of the training data. Use it to explain results on
public data, not to choose C on private data.
"""

from dpsweep.theory.convergence import ConvergenceBound, ConvergenceOptimum
from dpsweep.theory.direction import DirectionOptimum, alignment, direction_optimal_clipping
from dpsweep.theory.mse import (
    MeanSquaredError,
    PrivacyEffects,
    mean_squared_error,
    mse_optimal_clipping,
)
from dpsweep.theory.progress import (
    MeasuredProgress,
    best_step_size,
    measured_progress,
    progress_bound,
    tuned_progress_bound,
)
from dpsweep.theory.softmax import (
    smallest_softmax_loss,
    softmax_gradient_deviation,
    softmax_gram,
    softmax_residuals,
    softmax_smoothness,
)
from dpsweep.theory.sums import ClippedSums, gram_matrix

__all__ = [
    "ClippedSums",
    "ConvergenceBound",
    "ConvergenceOptimum",
    "DirectionOptimum",
    "MeanSquaredError",
    "MeasuredProgress",
    "PrivacyEffects",
    "alignment",
    "best_step_size",
    "direction_optimal_clipping",
    "gram_matrix",
    "mean_squared_error",
    "measured_progress",
    "mse_optimal_clipping",
    "progress_bound",
    "smallest_softmax_loss",
    "softmax_gradient_deviation",
    "softmax_gram",
    "softmax_residuals",
    "softmax_smoothness",
    "tuned_progress_bound",
]
