#!/usr/bin/env bash
# Believed: A private loader made from a loader with batch_size=300 over 1,000 rows draws 300 rows
# in the mean.
# Happens: Opacus takes the rate 1 / len(loader) = 1/4. A batch has 250 rows in the mean, and the
# optimizer divides by 250.
# Advice: Read `loader.sample_rate`; choose a batch size that divides the number of rows.
# Versions: opacus 1.6.0, torch 2.15.0, Python 3.11. Seen on 2026-11-28.
# Output:
#   rate 0.25, mean batch 249, divisor 250
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

data = TensorDataset(torch.randn(1000, 3), torch.zeros(1000).long())
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model, optimizer, loader = PrivacyEngine().make_private(
    module=model, optimizer=optimizer, data_loader=DataLoader(data, batch_size=300),
    noise_multiplier=1.0, max_grad_norm=1.0,
)
sizes = [len(labels) for _ in range(100) for _, labels in loader]
print(f"rate {loader.sample_rate}, mean batch {sum(sizes) / len(sizes):.0f}, divisor {optimizer.expected_batch_size}")
assert loader.sample_rate == 0.25 and optimizer.expected_batch_size == 250
PYTHON
