#!/usr/bin/env bash
# Believed: Opacus refuses BatchNorm in train mode, since it mixes the examples of a batch.
# Happens: It looks at layers with parameters that train. A frozen BatchNorm, as under LoRA or below a
# new head, is accepted, keeps the mode that Opacus asks for (train), and takes its statistics from the
# batch: one example changes the gradients of all. Here it moves the clipped sum by 5.3 C; the noise is
# for 1 C.
# Advice: Call `eval()` on every BatchNorm after `make_private`, or replace it.
# Versions: opacus 1.6.0, torch 2.15.0 (CPU). Seen on 2026-11-28.
# Output:
#   errors found: 1 where the norm trains, 0 where it is frozen
#   contribution of one example: 5.3 C; with statistics in eval mode 1.0 C
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy==2.4.6 scipy==1.17.1 opacus==1.6.0
export OMP_NUM_THREADS=1
"$folder/bin/python" -W ignore - <<'PYTHON'
import torch
from opacus import PrivacyEngine
from opacus.validators import ModuleValidator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

C, COUNT = 1.0, 64


def network():
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8).requires_grad_(False)
    return nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3))


def longest(fixed):
    """Return by how much, in units of C, a batch's clipped sum changes without its last example."""
    model = network()
    inputs, labels = torch.randn(COUNT, 3, 8, 8), torch.arange(COUNT) % 3
    inputs[-1] *= 300
    private, optimizer, _ = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(inputs, labels), batch_size=COUNT),
        noise_multiplier=1.0,
        max_grad_norm=C,
    )
    if fixed:
        model[1].eval()
    sums = []
    for count in (COUNT, COUNT - 1):
        nn.functional.cross_entropy(private(inputs[:count]), labels[:count]).backward()
        optimizer.clip_and_accumulate()
        sums.append(torch.cat([each.summed_grad.flatten() for each in optimizer.params]))
        optimizer.zero_grad()
    return ((sums[0] - sums[1]).norm() / C).item()


trained = network().requires_grad_(True)
errors = [len(ModuleValidator.validate(each)) for each in (trained, network())]
print(f"errors found: {errors[0]} where the norm trains, {errors[1]} where it is frozen")
found = longest(fixed=False), longest(fixed=True)
print("contribution of one example: {:.1f} C; with statistics in eval mode {:.1f} C".format(*found))
assert errors == [1, 0] and found[0] > 3 and found[1] < 1.001
PYTHON
