"""Calibrate and sample with JAX-Privacy; settings come from standard input, results go to standard output.

It runs in an environment with jax-privacy, without dpsweep: `benchmarks.peers.budgets` calls it.
"""

import json
import sys
from importlib.metadata import version
from typing import Any

from jax_privacy import batch_selection
from jax_privacy.accounting import accountants, analysis, calibrate


def run(setting: dict[str, Any]) -> dict[str, Any]:
    """Calibrate noise with the PLD accountant of the Keras interface, and draw all batches."""
    accountant = analysis.DpsgdTrainingAccountant(
        dp_accountant_config=accountants.PldAccountantConfig(value_discretization_interval=1e-3)
    )
    size, batch_size, steps = setting["examples"], setting["batch_size"], setting["steps"]
    try:
        sigma = calibrate.calibrate_noise_multiplier(
            target_epsilon=setting["epsilon"],
            target_delta=setting["delta"],
            accountant=accountant,
            batch_sizes=batch_size,
            num_updates=steps,
            num_samples=size,
        )
        reported = accountant.compute_epsilon(
            steps,
            analysis.DpParams(
                noise_multipliers=sigma,
                batch_size=batch_size,
                num_samples=size,
                delta=setting["delta"],
            ),
        )
    except Exception as error:
        return {"refused": f"{type(error).__name__}: {error}"}
    rate = batch_size / size
    sampling = batch_selection.CyclicPoissonSampling(sampling_prob=rate, iterations=steps)
    sizes = [len(each) for each in sampling.batch_iterator(size, rng=0)]
    return {
        "rate": rate,
        "steps": len(sizes),
        "mean_batch": sum(sizes) / len(sizes),
        "divisor": batch_size,
        "noise_multiplier": sigma,
        "reported": float(reported),
    }


if __name__ == "__main__":
    settings = json.load(sys.stdin)
    print(json.dumps([run(each) | {"version": version("jax-privacy")} for each in settings]))
