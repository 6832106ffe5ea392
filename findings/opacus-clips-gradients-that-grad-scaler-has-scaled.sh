#!/usr/bin/env bash
# Believed: `torch.amp.GradScaler` takes its scale out of the gradients before Opacus clips them, or
# Opacus refuses it.
# Happens: The scaler divides `grad`, Opacus clips `grad_sample`, which nobody divides: at the first
# scale of 65,536 each example is clipped to the whole bound C, however short its gradient. With
# gradients of norm 0.8 and C = 10 an update is 9 times as long, and C has become a learning rate.
# Nothing is said; privacy is as accounted.
# Advice: Train in bfloat16 autocast without a scaler, or divide each `grad_sample` by the scale before
# `step`.
# Versions: opacus 1.6.0, torch 2.15.0 (CPU). Seen on 2026-11-28.
# Output:
#   norms of the gradients 0.79 to 0.87, C = 10
#   update without scaler 0.065, with scaler 0.57, divided by hand 0.065
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
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

C = 10.0


def update(scaled, divided=False):
    """Return the norms of the gradients and the length of a step without noise."""
    torch.manual_seed(0)
    model, inputs, labels = nn.Linear(5, 3), 0.05 * torch.randn(6, 5), torch.arange(6) % 3
    before = nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    private, optimizer, _ = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        data_loader=DataLoader(TensorDataset(inputs, labels), batch_size=6),
        noise_multiplier=0.0,
        max_grad_norm=C,
    )
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    scaler.scale(nn.functional.cross_entropy(private(inputs), labels)).backward()
    if divided:
        for each in optimizer.params:
            each.grad_sample /= scaler.get_scale()
    norms = torch.cat([each.grad_sample.flatten(1) for each in optimizer.params], 1).norm(dim=1)
    scaler.step(optimizer)
    return norms, (nn.utils.parameters_to_vector(model.parameters()) - before).norm().item()


norms, plain = update(scaled=False)
_, with_scaler = update(scaled=True)
_, by_hand = update(scaled=True, divided=True)
print(f"norms of the gradients {norms.min():.2f} to {norms.max():.2f}, C = {C:.0f}")
print(f"update without scaler {plain:.3f}, with scaler {with_scaler:.2f}, divided by hand {by_hand:.3f}")
assert norms.max() < C / 10 and with_scaler > 8 * plain and abs(by_hand - plain) < 1e-4
PYTHON
