#!/usr/bin/env bash
# Believed: With `CrossEntropyLoss(weight=...)` the per-example gradient of Opacus is that of the
# example's own weighted loss.
# Happens: torch divides by the sum of the batch's weights, and Opacus' hooks and functorch multiply by
# its size: each gradient depends on the labels of all. Without the one example of a rare class of
# weight 50 the other 63 gradients grow 1.8 times, and the clipped sum moves by 7.3 C; the noise is for
# 1 C. Ghost clipping, which averages the losses itself, is right.
# Advice: Use `reduction="sum"` with `loss_reduction="sum"`, or `grad_sample_mode="ghost"`.
# Versions: opacus 1.6.0, torch 2.15.0 (CPU). Seen on 2026-11-28.
# Output:
#   hooks: contribution of one example 7.3 C with class weights, 1.0 C without
#   functorch: contribution of one example 7.3 C with class weights, 1.0 C without
#   ghost: contribution of one example 1.0 C with class weights, 1.0 C without
#   hooks, sums in the place of means: 1.0 C
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

C, COUNT = 1.0, 64
WEIGHTS = torch.tensor([1.0, 50.0])
torch.manual_seed(0)
inputs = torch.randn(COUNT, 5)
labels = torch.zeros(COUNT, dtype=torch.long)
labels[-1] = 1  # one example of the rare class


def longest(mode, criterion, reduction="mean"):
    """Return by how much, in units of C, a batch's clipped sum changes without its last example."""
    torch.manual_seed(0)
    model = nn.Linear(5, 2)
    made = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=criterion,
        data_loader=DataLoader(TensorDataset(inputs, labels), batch_size=COUNT),
        noise_multiplier=1.0,
        max_grad_norm=C,
        grad_sample_mode=mode,
        loss_reduction=reduction,
    )
    model, optimizer = made[:2]
    if mode == "ghost":
        criterion = made[2]
    sums = []
    for count in (COUNT, COUNT - 1):
        criterion(model(inputs[:count]), labels[:count]).backward()
        if mode == "ghost":
            optimizer.accumulate()
        else:
            optimizer.clip_and_accumulate()
        sums.append(torch.cat([each.summed_grad.flatten() for each in optimizer.params]))
        optimizer.zero_grad()
    return ((sums[0] - sums[1]).norm() / C).item()


found = {}
for mode in ("hooks", "functorch", "ghost"):
    found[mode] = longest(mode, nn.CrossEntropyLoss(weight=WEIGHTS)), longest(mode, nn.CrossEntropyLoss())
    print("{}: contribution of one example {:.1f} C with class weights, {:.1f} C without".format(mode, *found[mode]))
sums = longest("hooks", nn.CrossEntropyLoss(weight=WEIGHTS, reduction="sum"), "sum")
print(f"hooks, sums in the place of means: {sums:.1f} C")
assert sums < 1.001
assert all(plain < 1.001 for _, plain in found.values())
assert found["hooks"][0] > 3 and found["functorch"][0] > 3 and found["ghost"][0] < 1.001
PYTHON
