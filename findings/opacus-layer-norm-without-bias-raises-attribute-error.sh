#!/usr/bin/env bash
# Believed: `nn.LayerNorm(width, bias=False)`, which torch has since 2.1 and ModernBERT and GPT code
# use, is supported or named as unsupported.
# Happens: `ModuleValidator` finds nothing wrong. The backward pass raises AttributeError: the rule
# reads `layer.bias.requires_grad`.
# Advice: Give the norm a frozen bias, or use another engine.
# Versions: opacus 1.6.0, torch 2.15.0, Python 3.11. Seen on 2026-11-28.
# Output:
#   AttributeError: 'NoneType' object has no attribute 'requires_grad'
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 opacus==1.6.0 numpy==2.4.6 scipy==1.17.1
export OMP_NUM_THREADS=1
"$folder/bin/python" -W ignore - <<'PYTHON'
import torch
from opacus.grad_sample import GradSampleModule
from opacus.validators import ModuleValidator
from torch import nn

model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4, bias=False))
assert ModuleValidator.validate(model) == []
wrapped = GradSampleModule(model)
try:
    wrapped(torch.randn(3, 4)).sum().backward()
except AttributeError as error:
    print(f"AttributeError: {error}")
else:
    raise SystemExit("it works now")
PYTHON
