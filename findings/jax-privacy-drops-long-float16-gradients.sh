#!/usr/bin/env bash
# Believed: `clipped_grad` scales a gradient that is longer than the bound to the bound, in every
# number format.
# Happens: A float16 gradient of norm 317 contributes nothing: the sum of its squares is above
# 65,504, the norm infinite, the factor zero. In bfloat16 a contribution is up to 0.25 % longer
# than the bound, although the sensitivity is guaranteed.
# Advice: Pass `dtype=jnp.float32`: then contributions have the length of the bound.
# Versions: jax-privacy 2.0.0, jax 0.10.2. Seen on 2026-11-28.
# Output:
#   float32, norm 316.83: contribution 1.0000
#   bfloat16, norm 31.11: contribution 1.0025
#   float16, norm 316.83: contribution 0.0000
#   float16, norm 316.83, dtype=float32: contribution 1.0000
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" jax-privacy==2.0.0 jax==0.10.2 jaxlib==0.10.2
export OMP_NUM_THREADS=1
"$folder/bin/python" -W ignore - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np
from jax_privacy import clipping


def length(array):
    return float(np.linalg.norm(np.asarray(array, dtype=np.float64)))


def contribution(size, form, dtype=None):
    example = jax.random.normal(jax.random.key(0), (3, size)).astype(form)[:1]
    gradient = clipping.clipped_grad(
        lambda weights, x: jnp.sum(weights * x), l2_clip_norm=1.0, dtype=dtype
    )
    found = length(gradient(jnp.zeros(size, form), example))
    wide = f", dtype={dtype.__name__}" if dtype else ""
    print(f"{form.__name__}, norm {length(example):.2f}{wide}: contribution {found:.4f}")
    return found


assert abs(contribution(100_000, jnp.float32) - 1) < 1e-4
assert contribution(1000, jnp.bfloat16) > 1.001
assert contribution(100_000, jnp.float16) == 0
assert abs(contribution(100_000, jnp.float16, jnp.float32) - 1) < 1e-4
PYTHON
