#!/usr/bin/env bash
# Believed: RDP is looser than the tight accountants by a tenth or two, so that it matters little for the
# noise.
# Happens: It is so at a sampling rate of 0.01. At the rates of large populations its epsilon is many
# times too large: three times at 0.001, 17 times at 0.00001. Epsilon is small there because few
# units take part at all, which the moments of RDP see only through their worst values.
# Advice: Account with PLD or PRV where the rate is below 0.001, and quote no epsilon of RDP for it.
# Versions: dp-accounting 0.6.0, prv-accountant 0.2.0, numpy 2.4.6, scipy 1.17.1. Seen on 2026-11-28.
# Output:
#   rate 0.01, sigma 1.0, delta 1e-05: PLD 1.83, PRV 1.81 to 1.85, RDP 2.10
#   rate 0.001, sigma 0.8, delta 1e-06: PLD 0.47, PRV 0.45 to 0.49, RDP 1.46
#   rate 0.0001, sigma 0.6, delta 1e-09: PLD 1.38, PRV 1.36 to 1.40, RDP 3.15
#   rate 1e-05, sigma 0.6, delta 1e-09: PLD 0.14, PRV 0.12 to 0.16, RDP 2.35
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" dp-accounting==0.6.0 prv-accountant==0.2.0 numpy==2.4.6 scipy==1.17.1
export OMP_NUM_THREADS=1
"$folder/bin/python" -W ignore - <<'PYTHON'
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

STEPS = 1_000
for rate, sigma, delta, least in ((1e-2, 1.0, 1e-5, 1.1), (1e-3, 0.8, 1e-6, 3), (1e-4, 0.6, 1e-9, 2),
                                  (1e-5, 0.6, 1e-9, 15)):
    event = PoissonSampledDpEvent(rate, GaussianDpEvent(sigma))
    pld, rdp = (kind().compose(event, STEPS).get_epsilon(delta) for kind in (PLDAccountant, RdpAccountant))
    mechanism = PoissonSubsampledGaussianMechanism(sampling_probability=rate, noise_multiplier=sigma)
    prv = PRVAccountant(prvs=[mechanism], max_self_compositions=[STEPS], eps_error=0.02,
                        delta_error=delta / 1000).compute_epsilon(delta, [STEPS])
    print(f"rate {rate:g}, sigma {sigma}, delta {delta:g}: PLD {pld:.2f}, "
          f"PRV {prv[0]:.2f} to {prv[2]:.2f}, RDP {rdp:.2f}")
    assert prv[0] < pld < prv[2] + 0.01 and least < rdp / pld < 3 * least
PYTHON
