#!/usr/bin/env bash
# Believed: The accountant `gdp` is an approximation by the central limit theorem; it is off by some
# per cent.
# Happens: For one step at sigma = 1 and rate 0.01 it prints less than a fifth of the true epsilon.
# Calibration with it gives less noise at epsilon 2 than an exact accountant, and raises
# ValueError at epsilon 8.
# Advice: Never use `gdp` for a guarantee.
# Versions: opacus 1.6.0, dp-accounting 0.6.0, torch 2.15.0. Seen on 2026-11-28.
# Output:
#   one step: gdp 0.0368, exact 0.1995; sigma at epsilon 2: {'gdp': 0.8935546875, 'prv': 0.9619140625}
#   at epsilon 8: ValueError: f(a) and f(b) must have different signs
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 opacus==1.6.0 numpy==2.4.6 scipy==1.17.1 dp-accounting==0.6.0
export OMP_NUM_THREADS=1
"$folder/bin/python" -W ignore - <<'PYTHON'
import dp_accounting
from dp_accounting.pld import PLDAccountant
from opacus.accountants import create_accountant
from opacus.accountants.utils import get_noise_multiplier

gdp = create_accountant("gdp")
gdp.history = [(1.0, 0.01, 1)]
exact = PLDAccountant()
exact.compose(dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0)))
ours, true = gdp.get_epsilon(1e-5), exact.get_epsilon(1e-5)
sigma = {
    name: get_noise_multiplier(
        target_epsilon=2.0, target_delta=1e-5, sample_rate=0.01, steps=1000, accountant=name
    )
    for name in ("gdp", "prv")
}
print(f"one step: gdp {ours:.4f}, exact {true:.4f}; sigma at epsilon 2: {sigma}")
assert ours < true / 5 and sigma["gdp"] < 0.95 * sigma["prv"]
try:
    get_noise_multiplier(
        target_epsilon=8.0, target_delta=1e-5, sample_rate=0.01, steps=1000, accountant="gdp"
    )
except ValueError as error:
    print(f"at epsilon 8: ValueError: {error}")
else:
    raise SystemExit("epsilon 8 is calibrated now")
PYTHON
