#!/usr/bin/env bash
# Believed: A rule for `nn.Conv2d` either supports its `padding_mode` or refuses it.
# Happens: Per-example gradients of circular, reflecting and replicating padding are computed as if
# zeros were padded. They are silently off by 30 to 50 %, and their norms too small: a
# clipped contribution may exceed its bound.
# Advice: Pad with `nn.functional.pad` in front of a convolution without padding.
# Versions: opacus 1.6.0, torch 2.15.0, Python 3.11. Seen on 2026-11-28.
# Output:
#   zeros: gradients off by 0%, norms 1.00 to 1.00 of the right ones
#   circular: gradients off by 40%, norms 0.82 to 0.91 of the right ones
#   reflect: gradients off by 37%, norms 0.80 to 0.88 of the right ones
#   replicate: gradients off by 38%, norms 0.79 to 0.93 of the right ones
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
from torch import nn


def errors(model, inputs):
    """Return the largest error of per-example gradients, and of their norms."""
    torch.manual_seed(1)
    names = [name for name, each in model.named_parameters() if each.requires_grad]
    parameters = [each for each in model.parameters() if each.requires_grad]
    right = []
    for example in inputs:
        found = torch.autograd.grad(model(example[None]).square().sum(), parameters)
        right.append(torch.cat([each.flatten() for each in found]))
    right = torch.stack(right)
    wrapped = GradSampleModule(model, loss_reduction="sum")
    wrapped(inputs).square().sum().backward()
    rows = torch.cat([each.grad_sample.flatten(1) for each in parameters], 1)
    ratio = rows.norm(dim=1) / right.norm(dim=1)
    return ((rows - right).norm(dim=1) / right.norm(dim=1)).max().item(), ratio.min().item(), ratio.max().item()


torch.manual_seed(0)

images = torch.randn(8, 2, 6, 6)
for mode in ("zeros", "circular", "reflect", "replicate"):
    layer = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1, padding_mode=mode), nn.Tanh())
    error, low, high = errors(layer, images)
    print(f"{mode}: gradients off by {error:.0%}, norms {low:.2f} to {high:.2f} of the right ones")
    assert (error < 1e-5) == (mode == "zeros")
PYTHON
