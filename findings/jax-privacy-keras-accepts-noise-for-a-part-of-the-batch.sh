#!/usr/bin/env bash
# Believed: `DPKerasConfig` refuses a noise multiplier that exceeds the budget of what it will run,
# with its accumulated batches.
# Happens: The check takes the physical batch size. With 8 accumulated batches it accepts noise
# 0.75 for epsilon 2, which spends 10.2; calibration by the class itself takes the whole
# batch and gives 1.88.
# Advice: Leave `noise_multiplier` out and call `update_with_calibrated_noise_multiplier`.
# Versions: jax-privacy 2.0.0, keras 3.15.1. Seen on 2026-11-28.
# Output:
#   accepted 0.75 for epsilon 2: its batches of 800 spend 10.2
#   calibrated 1.88: its batches of 800 spend 2.0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" jax-privacy==2.0.0 jax==0.10.2 jaxlib==0.10.2 keras==3.15.1
export OMP_NUM_THREADS=1
"$folder/bin/python" -W ignore - <<'PYTHON'
import contextlib
import os

os.environ["KERAS_BACKEND"] = "jax"
from jax_privacy import keras_api
from jax_privacy.accounting import accountants, analysis

accountant = analysis.DpsgdTrainingAccountant(
    dp_accountant_config=accountants.PldAccountantConfig(value_discretization_interval=1e-3)
)


def spent(noise):
    parameters = analysis.DpParams(
        noise_multipliers=noise, batch_size=800, num_samples=10_000, delta=1e-5
    )
    return accountant.compute_epsilon(100, parameters)


budget = {"epsilon": 2.0, "delta": 1e-5, "clipping_norm": 1.0, "batch_size": 100}
budget |= {"gradient_accumulation_steps": 8, "train_steps": 100, "train_size": 10_000}
accepted = keras_api.DPKerasConfig(**budget, noise_multiplier=0.75).noise_multiplier
with contextlib.redirect_stdout(None):
    config = keras_api.DPKerasConfig(**budget).update_with_calibrated_noise_multiplier()
print(f"accepted {accepted} for epsilon 2: its batches of 800 spend {spent(accepted):.1f}")
print(f"calibrated {config.noise_multiplier:.2f}: its batches of 800 spend "
      f"{spent(config.noise_multiplier):.1f}")
assert spent(accepted) > 10
assert spent(config.noise_multiplier) <= 2
PYTHON
