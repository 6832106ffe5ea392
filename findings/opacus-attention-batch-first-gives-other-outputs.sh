#!/usr/bin/env bash
# Believed: `DPMultiheadAttention` is the drop-in replacement that Opacus calls it: with the weights
# of `nn.MultiheadAttention` it gives its outputs.
# Happens: It does with tokens first, and with one head. With `batch_first=True` and several heads
# it splits the transposed tensor as if tokens came first: outputs differ by as much as they
# are large, and depend on the order of the tokens. `ModuleValidator.fix` puts it in place of
# pretrained attention without a word. Examples stay apart, so privacy holds.
# Advice: Compare outputs before and after `fix`, or put the tokens first around the layer.
# Versions: opacus 1.6.0, torch 2.15.0, Python 3.11. Seen on 2026-11-28.
# Output:
#   batch_first=False, 1 heads: largest difference 0.00 of 0.65
#   batch_first=False, 2 heads: largest difference 0.00 of 0.91
#   batch_first=True, 1 heads: largest difference 0.00 of 0.72
#   batch_first=True, 2 heads: largest difference 0.54 of 0.64
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 opacus==1.6.0 numpy==2.4.6 scipy==1.17.1
export OMP_NUM_THREADS=1
"$folder/bin/python" -W ignore - <<'PYTHON'
import torch
from opacus.validators import ModuleValidator
from torch import nn

torch.manual_seed(0)
for batch_first in (False, True):
    for heads in (1, 2):
        layer = nn.MultiheadAttention(8, heads, batch_first=batch_first).eval()
        fixed = ModuleValidator.fix(nn.Sequential(layer))[0].eval()
        assert torch.equal(fixed.out_proj.weight, layer.out_proj.weight)
        inputs = torch.randn(4, 5, 8)
        wanted, found = layer(inputs, inputs, inputs)[0], fixed(inputs, inputs, inputs)[0]
        error, size = (found - wanted).abs().max().item(), wanted.abs().max().item()
        print(f"{batch_first=}, {heads} heads: largest difference {error:.2f} of {size:.2f}")
        assert (error > 0.1 * size) == (batch_first and heads == 2)
        assert error < 1e-5 or error > 0.1 * size
PYTHON
