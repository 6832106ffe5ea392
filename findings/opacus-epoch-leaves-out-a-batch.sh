#!/usr/bin/env bash
# Believed: `make_private_with_epsilon` trains one epoch of a loader of 93 batches in 93 steps, at
# an epsilon of at most the target.
# Happens: The epoch has int(1 / (1 / 93)) = 92 steps. The accountant then counts the rate 1/92, the
# calibration used 1/93: the reported epsilon exceeds the target. 141 of the lengths from 1
# to 1999 lose a batch.
# Advice: Compare `get_epsilon` with the target after the training, and count the steps.
# Versions: opacus 1.6.0, torch 2.15.0, Python 3.11. Seen on 2026-11-28.
# Output:
#   92 steps of 93; epsilon 8.037 of 8; 141 of 1999 lengths lose a batch
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 opacus==1.6.0 numpy==2.4.6 scipy==1.17.1
export OMP_NUM_THREADS=1
"$folder/bin/python" -W ignore - <<'PYTHON'
import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(930, 3), torch.zeros(930).long())
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
engine = PrivacyEngine(accountant="prv")
model, optimizer, loader = engine.make_private_with_epsilon(
    module=model, optimizer=optimizer, data_loader=DataLoader(data, batch_size=10),
    target_epsilon=8.0, target_delta=1e-5, epochs=1, max_grad_norm=1.0,
)
steps = 0
for inputs, labels in loader:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    steps += 1
epsilon = engine.get_epsilon(1e-5)
lost = [n for n in range(1, 2000) if int(1 / (1 / n)) != n]
print(f"{steps} steps of 93; epsilon {epsilon:.3f} of 8; {len(lost)} of 1999 lengths lose a batch")
assert steps == 92 and epsilon > 8.02
assert len(lost) == 141
PYTHON
