#!/usr/bin/env bash
# Believed: A seed gives the same initial weights and noise in all releases of torch 2 on one CPU.
# Happens: From 2.10 to 2.15 float32 `randn`, `bernoulli_` and `randperm` stay. `randn` in bfloat16
# and `nn.init.trunc_normal_` (first weights of ModernBERT and others) draw other numbers.
# Advice: Draw noise in float32, save first weights instead of their seed, or pin torch.
# Versions: torch 2.10.0 and 2.15.0 (CPU). Seen on 2026-11-28.
# Output:
#   float32 randn: same
#   bernoulli_: same
#   randperm: same
#   bfloat16 randn: other
#   trunc_normal_: other
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export OMP_NUM_THREADS=1
cat > "$folder/draw.py" <<'PYTHON'
import sys

import torch

draws = {
    "float32 randn": lambda: torch.randn(1000),
    "bernoulli_": lambda: torch.empty(1000).bernoulli_(0.1),
    "randperm": lambda: torch.randperm(1000),
    "bfloat16 randn": lambda: torch.randn(1000, dtype=torch.bfloat16),
    "trunc_normal_": lambda: torch.nn.init.trunc_normal_(torch.empty(1000), std=0.02),
}
drawn = {}
for name, draw in draws.items():
    torch.manual_seed(0)
    drawn[name] = draw()
torch.save(drawn, sys.argv[1])
PYTHON
for version in 2.10.0 2.15.0; do
    python3 -m venv "$folder/$version"
    "$folder/$version/bin/pip" install --quiet uv
    "$folder/$version/bin/uv" pip install --quiet --python "$folder/$version/bin/python" "torch==$version" numpy==2.4.6
    "$folder/$version/bin/python" -W ignore "$folder/draw.py" "$folder/$version.pt"
done
"$folder/2.15.0/bin/python" -W ignore - "$folder" <<'PYTHON'
import sys

import torch

old, new = (torch.load(f"{sys.argv[1]}/{version}.pt") for version in ("2.10.0", "2.15.0"))
for name in old:
    same = torch.equal(old[name], new[name])
    print(f"{name}: {'same' if same else 'other'}")
    assert same == (name not in ("bfloat16 randn", "trunc_normal_"))
PYTHON
