#!/usr/bin/env bash
# Believed: `jax.random.normal` in bfloat16 is a normal number that is rounded: 0.27 % of the draws
# exceed 3, and a million draws reach 4.9.
# Happens: It transforms a uniform number of 8 bits. No draw exceeds 2.9, and only 128 numbers
# occur. JAX-Privacy draws noise in the dtype of the gradients unless it is told another: with
# bfloat16 gradients and sigma = 1, an example that moves the sum by its bound leaves the reachable
# range with probability 2.9 %, so that no delta below it holds.
# Advice: Pass `dtype=jnp.float32` to `gaussian_privatizer` and add in float32. In float32 the
# draws end at 5.42.
# Versions: jax 0.10.2, jax-privacy 2.0.0, numpy 2.4.6. Seen on 2026-11-28.
# Output:
#   float32: 2,000,000 draws end at 5.2, numbers above 3: 0.26%, values: more than 1,000
#   bfloat16: 2,000,000 draws end at 2.9, numbers above 3: 0.00%, values: 128
#   jax-privacy, bfloat16 gradients: noise ends at 2.9 sigma
#   jax-privacy, dtype=float32: noise ends at 5.1 sigma
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" jax==0.10.2 jax-privacy==2.0.0 numpy==2.4.6
"$folder/bin/python" -W ignore - <<'PYTHON'
import jax
import jax.numpy as jnp
import numpy as np
from jax_privacy import noise_addition

COUNT = 2_000_000
for dtype in (jnp.float32, jnp.bfloat16):
    drawn = np.asarray(jax.random.normal(jax.random.key(0), (COUNT,), dtype=dtype).astype(jnp.float32))
    values, end = len(np.unique(drawn)), np.abs(drawn).max()
    print(
        f"{dtype.__name__}: {COUNT:,} draws end at {end:.1f}, numbers above 3: {(np.abs(drawn) > 3).mean():.2%}, "
        f"values: {values if values < 1000 else 'more than 1,000'}"
    )
    assert (end < 3 and values == 128) if dtype == jnp.bfloat16 else (end > 4.5 and values > 1000)

for title, options in (("bfloat16 gradients", {}), ("dtype=float32", {"dtype": jnp.float32})):
    privatizer = noise_addition.gaussian_privatizer(stddev=1.0, prng_key=jax.random.key(0), **options)
    zeros = jnp.zeros(COUNT, jnp.bfloat16)
    noisy, _ = privatizer.update(zeros, privatizer.init(zeros))
    end = float(jnp.abs(noisy.astype(jnp.float32)).max())
    print(f"jax-privacy, {title}: noise ends at {end:.1f} sigma")
    assert (end < 3) == (not options)
PYTHON
