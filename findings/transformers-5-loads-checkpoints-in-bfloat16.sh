#!/usr/bin/env bash
# Believed: `from_pretrained` without a dtype gives a float32 network, as it always did.
# Happens: Since transformers 5 the network has the dtype of its checkpoint, as the default dtype
# is `auto`: a bfloat16 checkpoint trains in bfloat16, its new head too. transformers 4 gave
# float32. Per-example norms, clipping and noise of Opacus are then computed in bfloat16 as well,
# without a word.
# Advice: Pass `dtype=torch.float32`.
# Versions: transformers 4.57.1 and 5.24.0, torch 2.15.0 (CPU), opacus 1.6.0. Seen on 2026-11-28.
# Output:
#   transformers 4.57.1: float32; gradients, clipped sum and noise in float32
#   transformers 5.24.0: bfloat16; gradients, clipped sum and noise in bfloat16
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy==2.4.6 scipy==1.17.1 opacus==1.6.0 transformers==5.24.0
export OMP_NUM_THREADS=1
export HF_HUB_OFFLINE=1 HF_HUB_DISABLE_PROGRESS_BARS=1
cat > "$folder/load.py" <<'PYTHON'
import sys

import torch
import transformers
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from transformers import BertConfig, BertForSequenceClassification, BertModel

transformers.logging.set_verbosity_error()
size = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
BertModel(BertConfig(**size, intermediate_size=64)).to(torch.bfloat16).save_pretrained(sys.argv[1])
network = BertForSequenceClassification.from_pretrained(sys.argv[1], num_labels=3)
network.requires_grad_(False)
network.classifier.requires_grad_(True)
network.train()
(dtype,) = {each.dtype for each in network.parameters()}
wrapped = GradSampleModule(network)
sgd = torch.optim.SGD([each for each in wrapped.parameters() if each.requires_grad], lr=1.0)
optimizer = DPOptimizer(sgd, noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=4)
wrapped(input_ids=torch.randint(100, (4, 6)), labels=torch.tensor([0, 1, 2, 0])).loss.backward()
weight = network.classifier.weight
assert weight.grad_sample.dtype == dtype
optimizer.pre_step()
assert weight.summed_grad.dtype == weight.grad.dtype == dtype
name = str(dtype).removeprefix("torch.")
print(f"transformers {transformers.__version__}: {name}; gradients, clipped sum and noise in {name}")
assert name == ("bfloat16" if transformers.__version__.startswith("5") else "float32")
PYTHON
for version in 4.57.1 5.24.0; do
    "$folder/bin/uv" pip install --quiet --python "$folder/bin/python" "transformers==$version"
    "$folder/bin/python" -W ignore "$folder/load.py" "$folder/$version" 2> >(grep -v -e Loading -e Writing >&2)
done
