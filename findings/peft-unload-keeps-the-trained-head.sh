#!/usr/bin/env bash
# Believed: `unload()` of a PEFT network gives back the network as it was before the adapter, with the head
# that `modules_to_save` has copied, as `disable_adapter()` does.
# Happens: It removes LoRA and keeps the trained head. The next run of a sweep that takes this network begins
# with a head that has seen the private data, so that its epsilon leaves out the first run; the runs of a
# sweep are no longer comparable either.
# Advice: Begin each run with a copy of the network from before `get_peft_model`.
# Versions: peft 0.21.2, torch 2.15.0 (CPU), transformers 5.24.0. Seen on 2026-11-29.
# Output:
#   disable_adapter: outputs of the network before training: True
#   unload: backbone of the network before training: True, head: False, trained head: True
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy==2.4.6 peft==0.21.2 transformers==5.24.0
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
"$folder/bin/python" -W ignore - <<'PYTHON'
import copy

import torch
from peft import LoraConfig, get_peft_model
from torch import nn


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, inputs):
        return self.head(torch.relu(self.backbone(inputs)))


torch.manual_seed(0)
before, inputs, labels = Network(), torch.randn(32, 8), torch.randint(0, 3, (32,))
config = LoraConfig(r=2, target_modules=["backbone"], modules_to_save=["head"])
network = get_peft_model(copy.deepcopy(before), config)
optimizer = torch.optim.SGD(network.parameters(), lr=0.5)
for _ in range(20):
    optimizer.zero_grad()
    nn.functional.cross_entropy(network(inputs), labels).backward()
    optimizer.step()
trained = network.base_model.model.head.modules_to_save["default"].weight.detach().clone()
with network.disable_adapter():
    same = torch.allclose(network(inputs), before(inputs))
back = network.unload()
backbone = torch.equal(back.backbone.weight, before.backbone.weight)
head, learned = (torch.equal(back.head.weight, weight) for weight in (before.head.weight, trained))
print(f"disable_adapter: outputs of the network before training: {same}")
print(f"unload: backbone of the network before training: {backbone}, head: {head}, trained head: {learned}")
assert same and backbone and not head and learned
PYTHON
