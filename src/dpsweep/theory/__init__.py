"""The paper's theory of clipping (section 4), computed from measured per-example gradients.

Plain arrays in and out, float64. Everything follows from how the gradients of a batch overlap:

- `gram_matrix`, `softmax_gram`, `ClippedSums`: a batch's gradients as what the formulas need;
- `mean_squared_error`, `mse_optimal_clipping`: Theorem 4.1;
- `alignment`, `direction_optimal_clipping`: the same for optimizers that do not mind scale;
- `PrivacyEffects`: the effect of noise on C* apart from that of the gradients it leads to;
- `progress_bound`, `tuned_progress_bound`, `best_step_size`, `measured_progress`: Theorem 4.2;
- `ConvergenceBound`: the bound of Koloskova et al. (2023), in hindsight;
- `softmax_residuals`, `softmax_smoothness`, `softmax_gradient_deviation`, `smallest_softmax_loss`: its
  constants, and those of Theorem 4.2, for a linear head with softmax.

None of this is private: it reads raw gradients of the training data. It is for explaining results on
public data, not for choosing C on private data.
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
