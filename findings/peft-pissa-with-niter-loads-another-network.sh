#!/usr/bin/env bash
# Believed: An adapter of PEFT that is saved and loaded onto the same base network gives the same outputs,
# and `disable_adapter` gives those of the base, whatever `init_lora_weights` was.
# Happens: With `pissa_niter_4`, the fast form of PiSSA, the loaded network is off by half of its outputs,
# in the same process and without a word. PiSSA subtracts its first adapter from the base; loading
# repeats that with another random decomposition. With `pissa` and `olora` loading is right, but
# `disable_adapter` gives the base less the first adapter.
# Advice: Save the merged network, or choose `pissa`; compare logits after loading, and take the base
# from a copy.
# Versions: peft 0.21.2, torch 2.15.0 (CPU), transformers 5.24.0. Seen on 2026-11-28.
# Output:
#   lora: loaded off by 0%, disabled off by 0%
#   pissa: loaded off by 0%, disabled off by 48%
#   pissa_niter_4: loaded off by 53%, disabled off by 54%
#   olora: loaded off by 0%, disabled off by 76%
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy==2.4.6 peft==0.21.2 transformers==5.24.0
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
"$folder/bin/python" -W ignore - "$folder" <<'PYTHON'
import copy
import sys

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import nn


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, inputs):
        return self.second(torch.relu(self.first(inputs)))


torch.manual_seed(0)
base, inputs = Network(), torch.randn(64, 64)


def off(outputs, right):
    return ((outputs - right).norm() / right.norm()).item()


for name in ("lora", "pissa", "pissa_niter_4", "olora"):
    config = LoraConfig(r=4, target_modules=["first", "second"],
                        init_lora_weights=True if name == "lora" else name)
    network = get_peft_model(copy.deepcopy(base), config).eval()
    assert off(network(inputs), base(inputs)) < 1e-5
    network.save_pretrained(f"{sys.argv[1]}/{name}")
    loaded = PeftModel.from_pretrained(copy.deepcopy(base), f"{sys.argv[1]}/{name}").eval()
    again = off(loaded(inputs), network(inputs))
    with network.disable_adapter():
        disabled = off(network(inputs), base(inputs))
    print(f"{name}: loaded off by {again:.0%}, disabled off by {disabled:.0%}")
    assert (again > 0.2) == (name == "pissa_niter_4") and (disabled > 0.2) == (name != "lora")
PYTHON
