"""Planning of an audit by simulation before the run: the number of guesses, and the power.

The simulation is exact: every canary contributes 1 if it is included and sampled, plus noise. It uses no
data of the audited run, so the bounds need no correction for the choice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from dpsweep.privacy.curve_guesses import fewest_that_refute
from dpsweep.privacy.guesses import (
    epsilon_lower_bound,
    fewest,
    likelihood_scores,
    p_value,
    right_guesses,
)
from dpsweep.privacy.record import Calibration
from dpsweep.privacy.trade_off import training_trade_off

Counts = npt.NDArray[np.int64]

NOISE_SHARES = (0.5, 0.7)
"""Shares of the claimed noise for which the power is computed."""
_CANDIDATES = (20, 30, 50, 70, 100, 150, 200, 300, 400, 500, 700, 1000, 2000, 5000)
_FULL_BATCH_RUNS, _SAMPLED_RUNS = 1000, 200


@dataclass(frozen=True)
class AuditPlan:
    """Numbers of guesses, fixed before a run, and their power.

    Attributes:
        guesses: for the bound of (epsilon, delta); gives the largest median bound for a correct trainer.
        curve_guesses: for the bound of the trade-off curve; gives the largest power.
        power: of the bound of (epsilon, delta): from the share of the claimed noise that a trainer adds to
            the share of runs that refute the claim.
        curve_power: the same for the bound of the curve.
    """

    guesses: int
    curve_guesses: int
    power: dict[float, float]
    curve_power: dict[float, float]


def plan_audit(noise: Calibration, canaries: int, guesses: int | None = None) -> AuditPlan:
    """Choose the numbers of guesses, and compute the power.

    Args:
        noise: the claim.
        canaries: m.
        guesses: for both bounds; None chooses the best ones.
    """
    random = np.random.default_rng(0)
    candidates = [guesses] if guesses else [each for each in _CANDIDATES if each <= canaries]
    candidates = candidates or [canaries - canaries % 2]
    right = {
        share: simulated_right_guesses(noise, share, canaries, candidates, random)
        for share in (1.0, *NOISE_SHARES)
    }

    def refutes_pair(guessed: int, correct: int) -> bool:
        return p_value(canaries, guessed, correct, noise.epsilon, noise.delta) < 0.05

    of_pair = [fewest(partial(refutes_pair, each), each) for each in candidates]
    curve = training_trade_off(noise).false_positive_rate
    of_curve = [fewest_that_refute(curve, canaries, each) for each in candidates]
    medians = [
        epsilon_lower_bound(canaries, each, int(count), noise.delta)
        for each, count in zip(candidates, np.median(right[1.0], axis=0), strict=True)
    ]
    power, curve_power = (
        {share: np.mean(right[share] >= needed, axis=0) for share in NOISE_SHARES}
        for needed in (of_pair, of_curve)
    )
    best, best_of_curve = int(np.argmax(medians)), int(np.argmax(sum(curve_power.values())))
    return AuditPlan(
        guesses=candidates[best],
        curve_guesses=candidates[best_of_curve],
        power={share: float(found[best]) for share, found in power.items()},
        curve_power={share: float(found[best_of_curve]) for share, found in curve_power.items()},
    )


def simulated_right_guesses(
    noise: Calibration,
    share: float,
    canaries: int,
    guesses: Sequence[int],
    random: np.random.Generator,
    runs: int | None = None,
) -> Counts:
    """Simulate the number of right guesses if a trainer adds a share of the claimed noise.

    Args:
        noise: the claim, which the auditor uses for the scores.
        share: share of the claimed standard deviation that the trainer adds.
        canaries: m.
        guesses: numbers of guesses.
        random: generator of coins, samples and noise.
        runs: number of runs; the default is smaller for sampled batches.

    Returns:
        Right guesses, shape (runs, len(guesses)).
    """
    sigma, rate, steps = noise.noise_multiplier, noise.sampling_rate, noise.steps
    if rate == 1:  # only the sum over the steps matters
        sigma, steps = sigma / np.sqrt(steps), 1
    halves = np.array(guesses) // 2 - 1
    found = []
    for _ in range(runs or (_FULL_BATCH_RUNS if rate == 1 else _SAMPLED_RUNS)):
        included = random.random(canaries) < 0.5
        sampled = random.random((steps, canaries)) < rate
        seen = (included & sampled) + share * sigma * random.standard_normal((steps, canaries))
        found.append(right_guesses(likelihood_scores(seen, sigma, rate), included)[halves])
    return np.array(found)
