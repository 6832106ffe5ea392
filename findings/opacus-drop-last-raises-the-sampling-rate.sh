#!/usr/bin/env bash
# Believed: `drop_last` of a data loader has no meaning under Poisson sampling: Opacus ignores it.
# Happens: It warns that it ignores it, and counts the batches of the loader that it replaces.
# 1,000 rows in batches of 600 are 2 batches and a rate of 1/2; with `drop_last=True` they
# are 1 batch and a rate of 1: every step takes every row, with noise 6.3 in place of 4.7.
# Advice: Leave `drop_last` out, and read `loader.sample_rate`.
# Versions: opacus 1.6.0, torch 2.15.0, Python 3.11. Seen on 2026-11-28.
# Output:
#   drop_last=False: rate 0.50, first batch of 494 rows, noise 4.71
#   drop_last=True: rate 1.00, first batch of 1000 rows, noise 6.35
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
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(1000, 2), torch.zeros(1000, dtype=torch.long))
for drop_last in (False, True):
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    _, optimizer, loader = PrivacyEngine().make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=600, drop_last=drop_last),
        target_epsilon=2.0,
        target_delta=1e-5,
        epochs=10,
        max_grad_norm=1.0,
    )
    rows = len(next(iter(loader))[1])
    print(f"{drop_last=}: rate {loader.sample_rate:.2f}, first batch of {rows} rows, "
          f"noise {optimizer.noise_multiplier:.2f}")
    assert loader.sample_rate == (1 if drop_last else 0.5)
    assert (rows == 1000) == drop_last
PYTHON
