#!/usr/bin/env bash
# Believed: `make_private` draws from the rows that the sampler of the data loader names, or refuses a
# sampler.
# Happens: It takes the data set and the number of batches, and drops the sampler without a word. With
# a `SubsetRandomSampler` of the first 800 of 1,000 rows a fifth of what is drawn are the other 200,
# which may be the validation set, and batches have 125 rows in the place of 100. A
# `WeightedRandomSampler` against rare classes has no effect. Privacy is as accounted.
# Advice: Give `make_private` a `Subset` of the data set; weight classes in the loss.
# Versions: opacus 1.6.0, torch 2.15.0 (CPU). Seen on 2026-11-28.
# Output:
#   sampler of the first 800 rows: 20% of the rows drawn are others; batches of 126 rows
#   sampler that draws both classes equally often: 10% of the rows drawn are of class 1
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
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset, WeightedRandomSampler

rows = torch.arange(1000)
data = TensorDataset(rows.float()[:, None], (rows >= 900).long())  # a tenth is of class 1


def drawn(sampler):
    """Return the private loader and its rows of 20 epochs."""
    torch.manual_seed(0)
    model = nn.Linear(1, 2)
    _, _, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=100, sampler=sampler),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    found = torch.cat([inputs.flatten() for _ in range(20) for inputs, _ in loader])
    return loader, found


loader, found = drawn(SubsetRandomSampler(range(800)))
outside = (found >= 800).double().mean().item()
print(f"sampler of the first 800 rows: {outside:.0%} of the rows drawn are others; "
      f"batches of {len(found) / 20 / len(loader):.0f} rows")
weights = torch.where(rows >= 900, 9.0, 1.0)
_, found = drawn(WeightedRandomSampler(weights.tolist(), 1000))
share = (found >= 900).double().mean().item()
print(f"sampler that draws both classes equally often: {share:.0%} of the rows drawn are of class 1")
assert 0.15 < outside < 0.25 and share < 0.15
PYTHON
