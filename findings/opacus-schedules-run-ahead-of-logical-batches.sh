#!/usr/bin/env bash
# Believed: With Opacus' BatchMemoryManager `optimizer.step()` and `scheduler.step()` after each
# part of a batch count logical batches.
# Happens: `optimizer.step()` returns early for a physical batch that does not end a logical one,
# but the scheduler that is called after it counts. With batches of 64 in parts of 8, a schedule to
# zero ends after about an eighth of the training; the rest trains with learning rate 0. Privacy is
# as accounted.
# Advice: Call `scheduler.step()` only if the step was not skipped: count the calls of
# `optimizer.attach_step_hook`.
# Versions: opacus 1.6.0, torch 2.15.0 (CPU). Seen on 2026-11-28.
# Output:
#   10 logical batches: the schedule took more than 50 steps; by the step hook 10
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
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
rows = TensorDataset(torch.randn(640, 4), torch.randint(2, (640,)))
engine, model = PrivacyEngine(), nn.Linear(4, 2)
model, optimizer, loader = engine.make_private(
    module=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
    data_loader=DataLoader(rows, batch_size=64),
    noise_multiplier=1.0,
    max_grad_norm=1.0,
)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / 10))
logical = []
accountant = optimizer.step_hook  # make_private's own
optimizer.attach_step_hook(lambda each: (accountant(each), logical.append(1)))
with BatchMemoryManager(data_loader=loader, max_physical_batch_size=8, optimizer=optimizer) as parts:
    for inputs, labels in parts:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        schedule.step()
((_, _, steps),) = engine.accountant.history
assert steps == len(logical) == 10 and schedule.last_epoch > 50 and schedule.get_last_lr() == [0.0]
print(f"{steps} logical batches: the schedule took more than 50 steps; by the step hook {len(logical)}")
PYTHON
