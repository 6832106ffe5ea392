#!/usr/bin/env bash
# Believed: A weight that its layer uses, and a function a second time, has the gradient of both
# uses or is refused.
# Happens: Only the use by the layer is counted. The per-example gradient is silently off by more
# than half, the norm too small: the clipped contribution may exceed its bound. Two layers
# that share a weight are right.
# Advice: Use each weight through layers only, and compare with a loop over examples.
# Versions: opacus 1.6.0, torch 2.15.0, Python 3.11. Seen on 2026-11-28.
# Output:
#   Shared: gradients off by 0%, norms 1.00 to 1.00 of the right ones
#   Tied: gradients off by 73%, norms 0.52 to 0.82 of the right ones
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

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6, bias=False)

    def forward(self, inputs):
        return nn.functional.linear(self.layer(inputs).tanh(), self.layer.weight)


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.second.weight = self.first.weight

    def forward(self, inputs):
        return self.second(self.first(inputs).tanh())


inputs = torch.randn(8, 6)
for model in (Shared(), Tied()):
    error, low, high = errors(model, inputs)
    print(f"{type(model).__name__}: gradients off by {error:.0%}, norms {low:.2f} to {high:.2f} of the right ones")
    assert (error < 1e-5) == isinstance(model, Shared)
PYTHON
