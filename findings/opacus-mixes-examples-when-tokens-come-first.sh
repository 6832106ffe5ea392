#!/usr/bin/env bash
# Believed: Inside a network whose input has examples first, a layer that is applied to (tokens,
# examples, width) is refused, or right.
# Happens: Opacus takes the first dimension of each layer as the examples. With as many tokens as
# examples, each example silently gets the sum over a token; with other numbers it raises
# RuntimeError when the optimizer steps.
# Advice: Keep examples in the first dimension of every layer (`batch_first=True`).
# Versions: opacus 1.6.0, torch 2.15.0, Python 3.11. Seen on 2026-11-28.
# Output:
#   6 tokens, 6 examples: gradients off by 102%, norms 0.68 to 1.02 of the right ones
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

class TokensFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 5)

    def forward(self, inputs):
        return self.layer(inputs.transpose(0, 1)).tanh().transpose(0, 1).sum(1)


error, low, high = errors(TokensFirst(), torch.randn(6, 6, 5))
print(f"6 tokens, 6 examples: gradients off by {error:.0%}, norms {low:.2f} to {high:.2f} of the right ones")
assert error > 0.5
PYTHON
