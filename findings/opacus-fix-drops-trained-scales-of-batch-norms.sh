#!/usr/bin/env bash
# Believed: `ModuleValidator.fix` puts a GroupNorm in the place of each BatchNorm and keeps its trained scale
# and shift, since both have one of each for a channel.
# Happens: Scale and shift are new: ones and zeros. The outputs of the network below correlate with those
# before by 0.39; with the old scale and shift copied they do by 0.95. Nothing is said. It also sets the
# new norms of a network in eval mode to train mode.
# Advice: Copy `weight` and `bias` of each BatchNorm into the GroupNorm that `fix` made of it.
# Versions: opacus 1.6.0, torch 2.15.0 (CPU), numpy 2.4.6. Seen on 2026-11-28.
# Output:
#   after fix: scales 1.0, shifts 0.0, outputs correlate by 0.39 with those before
#   scales and shifts copied: outputs correlate by 0.95
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy==2.4.6 opacus==1.6.0
export OMP_NUM_THREADS=1
"$folder/bin/python" -W ignore - <<'PYTHON'
import torch
from opacus.validators import ModuleValidator
from torch import nn

torch.manual_seed(0)
layers = []
for width in (3, 32, 32):
    layers += [nn.Conv2d(width, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10))
images = torch.randn(256, 3, 16, 16)
trained = [layer for layer in network if isinstance(layer, nn.BatchNorm2d)]
with torch.no_grad():
    for norm in trained:  # stands for training
        norm.weight.copy_(torch.randn(32).mul(0.7).exp())
        norm.bias.normal_()
    for _ in range(50):
        network(images)
    before = network.eval()(images)


def correlation(outputs):
    centred, right = outputs - outputs.mean(0), before - before.mean(0)
    return ((centred * right).sum() / (centred.norm() * right.norm())).item()


fixed = ModuleValidator.fix(network)
norms = [layer for layer in fixed if isinstance(layer, nn.GroupNorm)]
(scale,), (shift,) = (torch.cat(list(values)).unique().tolist()
                      for values in ((norm.weight for norm in norms), (norm.bias for norm in norms)))
with torch.no_grad():
    new = correlation(fixed(images))
    for norm, old in zip(norms, trained, strict=True):
        norm.weight.copy_(old.weight)
        norm.bias.copy_(old.bias)
    copied = correlation(fixed(images))
print(f"after fix: scales {scale}, shifts {shift}, outputs correlate by {new:.2f} with those before")
print(f"scales and shifts copied: outputs correlate by {copied:.2f}")
assert (scale, shift) == (1, 0) and new < 0.6 and copied > 0.9
assert not network.training and all(norm.training for norm in norms)
PYTHON
