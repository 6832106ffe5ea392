"""Two ways in which less epsilon changes the best clipping bound, taken apart.

Less epsilon means more noise in every step (the direct effect), and a training that leaves other
gradients behind (the indirect effect; the paper's explanation of why larger bounds can win).
"""

from collections.abc import Callable
from dataclasses import dataclass

from dpsweep.theory.sums import ClippedSums

Rule = Callable[[ClippedSums, float, int], float]
"""For example `dpsweep.theory.mse_optimal_clipping`."""


@dataclass(frozen=True)
class PrivacyEffects:
    """The best bound for the gradients and the noise of two privacy budgets, in all combinations.

    Attributes:
        loose: gradients and noise of the large epsilon.
        direct: its gradients with the noise of the small one.
        indirect: the gradients of the small epsilon with the noise of the large one.
        tight: gradients and noise of the small one.
    """

    loose: float
    direct: float
    indirect: float
    tight: float

    @classmethod
    def of(
        cls,
        rule: Rule,
        loose: ClippedSums,
        tight: ClippedSums,
        noise_multipliers: tuple[float, float],
        dimension: int,
    ) -> "PrivacyEffects":
        """Apply a rule to gradients and noise of two budgets.

        Args:
            rule: what a best bound is.
            loose: gradients of a training with the large epsilon.
            tight: gradients of a training with the small one, for batches of the same size.
            noise_multipliers: sigma of the large epsilon and of the small one.
            dimension: d, the number of trainable parameters.
        """
        little, much = noise_multipliers
        return cls(
            loose=rule(loose, little, dimension),
            direct=rule(loose, much, dimension),
            indirect=rule(tight, little, dimension),
            tight=rule(tight, much, dimension),
        )
