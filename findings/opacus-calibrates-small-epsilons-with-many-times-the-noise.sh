#!/usr/bin/env bash
# Believed: `get_noise_multiplier` gives the noise that a target needs, within a few percent.
# Happens: Its search stops 0.01 below the target, and its PRV accountant adds 0.01 to epsilon.
# At epsilon 0.1 the noise is 15 % too large, at 0.02 twice, at 0.011 nine times as large as
# needed; at 0.005 it raises "The privacy budget is too low".
# Advice: Below an epsilon of 0.5 pass `epsilon_tolerance=1e-4, eps_error=1e-3`, or smaller.
# Versions: opacus 1.6.0, dp-accounting 0.6.0, torch 2.15.0. Seen on 2026-11-28.
# Output:
#   epsilon 0.1: noise 11.25, needed 9.81
#   epsilon 0.02: noise 80.00, needed 42.35
#   epsilon 0.011: noise 640.00, needed 74.12
#   epsilon 0.005: The privacy budget is too low.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 opacus==1.6.0 dp-accounting==0.6.0 numpy==2.4.6 scipy==1.17.1
export OMP_NUM_THREADS=1
"$folder/bin/python" -W ignore - <<'PYTHON'
import dp_accounting
from dp_accounting.pld import PLDAccountant
from opacus.accountants.utils import get_noise_multiplier

RATE, STEPS, DELTA = 0.01, 1000, 1e-5


def epsilon_of(noise):
    accountant = PLDAccountant()
    gaussian = dp_accounting.GaussianDpEvent(noise)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(RATE, gaussian), STEPS)
    return accountant.get_epsilon(DELTA)


def needed(epsilon, low, high):
    """Bisect with dp-accounting, whose epsilon is an upper bound."""
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon_of(middle) > epsilon else (low, middle)
    return high


asked = {"sample_rate": RATE, "steps": STEPS, "target_delta": DELTA, "accountant": "prv"}
for epsilon, times in ((0.1, 1.1), (0.02, 1.8), (0.011, 7)):
    noise = get_noise_multiplier(target_epsilon=epsilon, **asked)
    enough = needed(epsilon, noise / 10, noise)
    print(f"epsilon {epsilon}: noise {noise:.2f}, needed {enough:.2f}")
    assert noise > times * enough
try:
    get_noise_multiplier(target_epsilon=0.005, **asked)
except ValueError as error:
    print(f"epsilon 0.005: {error}")
else:
    raise AssertionError("it found noise for epsilon 0.005")
PYTHON
