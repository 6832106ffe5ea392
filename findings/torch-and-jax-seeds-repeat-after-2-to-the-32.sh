#!/usr/bin/env bash
# Believed: A generator whose seed may have 64 bits has another stream for each of them.
# Happens: torch's CPU generator and `jax.random.PRNGKey` (without x64) take the lower 32 bits: the
# seeds 1, 1 + 2^32 and 1 + 2^40 draw the same numbers, although `initial_seed()` of torch differs.
# A seed that is a hash of a trial's name, or a secret of 64 bits, has 2^32 streams. numpy's
# generators have another stream for each.
# Advice: Use numpy's SeedSequence, Philox or PCG64 for streams by key, or a hash of 32 bits and a
# check for repeats.
# Versions: torch 2.15.0 (CPU), jax 0.10.2, numpy 2.4.6. Seen on 2026-11-28.
# Output:
#   torch: same for 1 + 2^32, same for 1 + 2^40, initial_seed() 1099511627777
#   jax: same for 1 + 2^32, same for 1 + 2^40
#   numpy: other for 1 + 2^32, other for 1 + 2^40
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 jax==0.10.2 numpy==2.4.6
"$folder/bin/python" -W ignore - <<'PYTHON'
import jax
import numpy as np
import torch

draws = {
    "torch": lambda seed: torch.randn(4, generator=torch.Generator().manual_seed(seed)).tolist(),
    "jax": lambda seed: jax.random.normal(jax.random.PRNGKey(seed), (4,)).tolist(),
    "numpy": lambda seed: np.random.default_rng(seed).standard_normal(4).tolist(),
}
for name, draw in draws.items():
    same = [draw(1) == draw(1 + 2**bits) for bits in (32, 40)]
    says = [f"{'same' if each else 'other'} for 1 + 2^{bits}" for each, bits in zip(same, (32, 40))]
    if name == "torch":
        says.append(f"initial_seed() {torch.Generator().manual_seed(1 + 2**40).initial_seed()}")
    print(f"{name}: {', '.join(says)}")
    assert all(same) if name != "numpy" else not any(same)
PYTHON
