#!/usr/bin/env bash
# Believed: `torch.binomial`, and `torch.distributions.Binomial` which calls it, draw from the
# distribution whatever the count is: a float32 result of 600 is exact.
# Happens: With float32 arguments and a count above 2^24 the variance is too large: by 14 % for 60 million
# rows at a rate of 1e-5, by 34 % for a billion at 1e-3; at a mean of 10 the mean is off by 3 % as well.
# Below 2^24, and in float64, it is right. Batch sizes of Poisson sampling that are drawn so, since they
# need no draw for each row, are not those that the accountant assumes.
# Advice: Pass float64 tensors, or use numpy's `Generator.binomial`.
# Versions: torch 2.15.0 (CPU), numpy 2.4.6. Seen on 2026-11-28.
# Output:
#   1e+06 rows, rate 0.0001: mean and variance over the right ones: float32 1.00 1.00, float64 1.00 1.00, numpy 1.00 1.00
#   6e+07 rows, rate 1e-05: mean and variance over the right ones: float32 1.00 1.14, float64 1.00 1.00, numpy 1.00 1.00
#   1e+09 rows, rate 0.001: mean and variance over the right ones: float32 1.00 1.34, float64 1.00 1.01, numpy 1.00 1.00
#   1e+08 rows, rate 1e-07: mean and variance over the right ones: float32 1.03 1.12, float64 1.00 1.00, numpy 1.00 1.00
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy==2.4.6
export OMP_NUM_THREADS=1
"$folder/bin/python" -W ignore - <<'PYTHON'
import numpy as np
import torch

DRAWS = 200_000
for rows, rate in ((1e6, 1e-4), (6e7, 1e-5), (1e9, 1e-3), (1e8, 1e-7)):
    torch.manual_seed(0)
    drawn = {
        name: torch.binomial(torch.full((DRAWS,), rows, dtype=dtype), torch.full((DRAWS,), rate, dtype=dtype))
        for name, dtype in (("float32", torch.float32), ("float64", torch.float64))
    }
    drawn["numpy"] = torch.from_numpy(np.random.default_rng(0).binomial(int(rows), rate, DRAWS))
    found = {}
    for name, draws in drawn.items():
        mean, variance = draws.double().mean().item(), draws.double().var().item()
        found[name] = mean / (rows * rate), variance / (rows * rate * (1 - rate))
    print(f"{rows:g} rows, rate {rate:g}: mean and variance over the right ones: "
          + ", ".join(f"{name} {mean:.2f} {variance:.2f}" for name, (mean, variance) in found.items()))
    for name, (mean, variance) in found.items():
        wrong = name == "float32" and rows > 2**24
        assert variance > 1.05 if wrong else abs(variance - 1) < 0.02 and abs(mean - 1) < 0.01
PYTHON
