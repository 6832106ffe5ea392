#!/usr/bin/env bash
# Believed: Opacus' PRV accountant gives an upper bound within 0.01, or raises "Floating point errors
# will dominate" where delta is too small for it.
# Happens: At a million full-batch steps and delta 1e-12 it raises nothing and says 3.11, less than at
# delta 1e-10 and below the exact 3.45 of the Gaussian mechanism: errors of the Fourier transform are
# as large as delta. At 10,000 steps it is right.
# Advice: At a delta below 1e-10 and more than 10,000 steps compare with the RDP accountant; an epsilon
# that falls with delta is wrong.
# Versions: opacus 1.6.0, torch 2.15.0 (CPU), scipy 1.17.1. Seen on 2026-11-28.
# Output:
#   10,000 steps, delta 1e-10: PRV 3.109, exact 3.099
#   10,000 steps, delta 1e-12: PRV 3.451, exact 3.449
#   1,000,000 steps, delta 1e-10: PRV 3.122, exact 3.099
#   1,000,000 steps, delta 1e-12: PRV 3.112, exact 3.449
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy==2.4.6 scipy==1.17.1 opacus==1.6.0
export OMP_NUM_THREADS=1
"$folder/bin/python" -W ignore - <<'PYTHON'
import math

from opacus.accountants import PRVAccountant
from scipy.optimize import brentq
from scipy.stats import norm


def exact(steps, sigma, delta):
    """Return the epsilon of Gaussian noise on full batches (Balle and Wang 2018, theorem 8)."""
    mu = math.sqrt(steps) / sigma

    def spent(epsilon):
        return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)

    return brentq(lambda epsilon: spent(epsilon) - delta, 0, 20)


found = {}
for steps in (10_000, 1_000_000):
    for delta in (1e-10, 1e-12):
        sigma = 2 * math.sqrt(steps)
        accountant = PRVAccountant()
        accountant.history = [(sigma, 1.0, steps)]
        found[steps, delta] = accountant.get_epsilon(delta)
        print(f"{steps:,} steps, delta {delta:g}: PRV {found[steps, delta]:.3f}, "
              f"exact {exact(steps, sigma, delta):.3f}")
assert found[10_000, 1e-12] > exact(10_000, 200.0, 1e-12)
assert found[1_000_000, 1e-12] < found[1_000_000, 1e-10] < exact(1_000_000, 2000.0, 1e-12)
PYTHON
