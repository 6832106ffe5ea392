#!/usr/bin/env bash
# Believed: With its default mesh of 1e-4 the PLD accountant is tight: within a percent, whatever
# the number of steps.
# Happens: Its pessimistic mesh adds an error in each step. At sigma = 100, rate 0.001 and a million
# steps it says 0.103, three times the 0.034 of a mesh of 1e-6; RDP, called the loose one,
# says 0.038. At 10,000 steps RDP is already the smaller one.
# Advice: With much noise and many steps pass `value_discretization_interval=1e-6`, or compare with
# RDP: the smaller of the two holds.
# Versions: dp-accounting 0.6.0. Seen on 2026-11-28.
# Output:
#   10000 steps: PLD 0.0085, RDP 0.0063
#   1000000 steps: PLD 0.1027, RDP 0.0385
#   1000000 steps, mesh 1e-06: PLD 0.0337
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" dp-accounting==0.6.0
export OMP_NUM_THREADS=1
"$folder/bin/python" -W ignore - <<'PYTHON'
import dp_accounting
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant


def epsilon(accountant, steps):
    gaussian = dp_accounting.GaussianDpEvent(100.0)
    accountant.compose(dp_accounting.PoissonSampledDpEvent(0.001, gaussian), steps)
    return float(accountant.get_epsilon(1e-6))


for steps, times in ((10_000, 1.2), (1_000_000, 2.5)):
    pld, rdp = epsilon(PLDAccountant(), steps), epsilon(RdpAccountant(), steps)
    print(f"{steps} steps: PLD {pld:.4f}, RDP {rdp:.4f}")
    assert pld > times * rdp
fine = epsilon(PLDAccountant(value_discretization_interval=1e-6), 1_000_000)
print(f"1000000 steps, mesh 1e-06: PLD {fine:.4f}")
assert pld > 2.9 * fine
PYTHON
