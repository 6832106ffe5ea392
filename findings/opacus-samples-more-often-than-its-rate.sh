#!/usr/bin/env bash
# Believed: `torch.rand(n) < rate` includes each row with probability `rate`, up to the precision of
# float32 (6e-8 relative).
# Happens: float32 draws are multiples of 2^-24. A rate of 1e-8 becomes 6e-8, and 1e-6 becomes 1.3 %
# more. Opacus samples so: its accountant is told the smaller rate. `bernoulli_` has no
# such step.
# Advice: Below a rate of about 1e-5, sample with `bernoulli_` or in float64.
# Versions: opacus 1.6.0, torch 2.15.0, Python 3.11. Seen on 2026-11-28.
# Output:
#   rate 1e-08: a row is drawn with probability 5.96e-08, +496.05%
#   rate 1e-06: a row is drawn with probability 1.013e-06, +1.33%
#   rate 0.001: a row is drawn with probability 0.001, +0.00%
#   6e8 draws at 1e-8: 22 of 6 expected; bernoulli_: 11
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 opacus==1.6.0 numpy==2.4.6 scipy==1.17.1
export OMP_NUM_THREADS=1
"$folder/bin/python" -W ignore - <<'PYTHON'
import inspect
import math

import torch
from opacus.utils.uniform_sampler import UniformWithReplacementSampler

source = inspect.getsource(UniformWithReplacementSampler.__iter__)
assert "torch.rand(" in source and "< self.sample_rate" in source.replace("\n", " ").replace("  ", "")
draws = torch.rand(2**24, generator=torch.Generator().manual_seed(1))
assert torch.equal(draws * 2**24, (draws * 2**24).round())
for rate in (1e-8, 1e-6, 1e-3):
    as_float32 = torch.tensor(rate).item()
    true = math.ceil(as_float32 * 2**24) / 2**24
    print(f"rate {rate:g}: a row is drawn with probability {true:.4g}, {true / rate - 1:+.2%}")
few = sum(
    (torch.rand(10**7, generator=torch.Generator().manual_seed(i)) < 1e-8).sum().item() for i in range(60)
)
right = sum(
    torch.empty(10**7).bernoulli_(1e-8, generator=torch.Generator().manual_seed(i)).sum().item() for i in range(60)
)
print(f"6e8 draws at 1e-8: {few} of 6 expected; bernoulli_: {right:.0f}")
assert few > 20 and right < 16
PYTHON
