#!/usr/bin/env bash
# Believed: Opacus' `DPLSTM` and `DPGRU` take packed sequences of mixed lengths, so per-example
# gradients belong to the rows.
# Happens: Packing sorts the rows by length, and the gradients of the recurrent layer stay in that order;
# those of the head have the order of the batch. A row is clipped by a norm that is put together from two
# rows, and one more row changes the pairs of the others: it moves the clipped sum by 2.3 C with an LSTM
# and 4.1 C with a GRU. The noise is for 1 C. Outputs and the unclipped gradient are right, so nothing
# shows.
# Advice: Sort each batch by length, longest first, before `pack_padded_sequence`, or do not pack.
# Versions: opacus 1.6.0, torch 2.15.0 (CPU), numpy 2.4.6. Seen on 2026-11-28.
# Output:
#   DPLSTM, rows as they come: one row moves the clipped sum by up to 2.3 C
#   DPLSTM, longest row first: one row moves the clipped sum by up to 1.0 C
#   DPGRU, rows as they come: one row moves the clipped sum by up to 4.1 C
#   DPGRU, longest row first: one row moves the clipped sum by up to 1.0 C
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy==2.4.6 opacus==1.6.0
export OMP_NUM_THREADS=1
"$folder/bin/python" -W ignore - <<'PYTHON'
import torch
from opacus import PrivacyEngine
from opacus.layers import DPGRU, DPLSTM
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils.data import DataLoader, TensorDataset

ROWS, C = 64, 0.3


class Classifier(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.recurrent, self.head = kind(8, 16, batch_first=True), nn.Linear(16, 2)
        nn.init.normal_(self.head.weight)

    def forward(self, texts, lengths):
        packed = pack_padded_sequence(texts, lengths, batch_first=True, enforce_sorted=False)
        last = self.recurrent(packed)[1]
        return self.head(last[0][-1] if isinstance(last, tuple) else last[-1])


def clipped_sum(kind, rows):
    """Return the sum of the clipped gradients: a step of length one without noise."""
    network = Classifier(kind)
    before = torch.cat([weight.detach().clone().flatten() for weight in network.parameters()])
    network, optimizer, _ = PrivacyEngine().make_private(
        module=network, optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
        data_loader=DataLoader(TensorDataset(texts, lengths, labels), batch_size=ROWS),
        noise_multiplier=0.0, max_grad_norm=C, poisson_sampling=False)
    optimizer.expected_batch_size = 1
    logits = network(texts[rows], lengths[rows])
    nn.functional.cross_entropy(logits, labels[rows]).backward()
    optimizer.step()
    return before - torch.cat([weight.detach().flatten() for weight in network.parameters()])


torch.manual_seed(0)
lengths, labels = torch.randperm(ROWS) + 2, torch.randint(0, 2, (ROWS,))
texts = torch.randn(ROWS, ROWS + 2, 8)
for kind in (DPLSTM, DPGRU):
    for name, rows in (("rows as they come", torch.arange(ROWS)),
                       ("longest row first", lengths.argsort(descending=True))):
        whole = clipped_sum(kind, rows)
        most = max((whole - clipped_sum(kind, torch.cat([rows[:i], rows[i + 1:]]))).norm().item() / C
                   for i in range(0, ROWS, 3))
        print(f"{kind.__name__}, {name}: one row moves the clipped sum by up to {most:.1f} C")
        assert most > 1.5 if name == "rows as they come" else most < 1.001
PYTHON
