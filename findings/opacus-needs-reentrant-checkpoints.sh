#!/usr/bin/env bash
# Believed: Gradient checkpointing without re-entrance (`use_reentrant=False`), which torch recommends
# and transformers 5 takes by default, works with Opacus' hooks; the re-entrant form, which hides the
# graph, does not.
# Happens: It is the other way round. Without re-entrance the checkpointed layers get no per-example
# gradients, and `step` raises "Per sample gradient is not initialized". With re-entrance the gradients
# equal those without checkpointing.
# Advice: Call `gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})`.
# What enters the first checkpointed layer must need a gradient.
# Versions: opacus 1.6.0, torch 2.15.0 (CPU), transformers 5.24.0. Seen on 2026-11-28.
# Output:
#   use_reentrant=False: 28 of 40 weights without gradient, ValueError
#   use_reentrant=True: 0 of 40 weights without gradient, off by 0.0%
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy==2.4.6 opacus==1.6.0 transformers==5.24.0
export OMP_NUM_THREADS=1 TRANSFORMERS_VERBOSITY=error
"$folder/bin/python" -W ignore - <<'PYTHON'
import copy

import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertForSequenceClassification

torch.manual_seed(0)
config = BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
                    intermediate_size=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
network = BertForSequenceClassification(config)
network.bert.embeddings.position_embeddings.requires_grad_(False)
texts, labels = torch.randint(0, 50, (4, 6)), torch.tensor([0, 1, 1, 0])


def gradients(**kwargs):
    """Return the per-example gradient of each weight that trains, and the error of a step."""
    private = GradSampleModule(copy.deepcopy(network).train())
    if kwargs:
        private._module.gradient_checkpointing_enable(gradient_checkpointing_kwargs=kwargs)
    optimizer = DPOptimizer(torch.optim.SGD(private.parameters(), lr=0.1), noise_multiplier=0.0,
                            max_grad_norm=1.0, expected_batch_size=4)
    cross_entropy(private(input_ids=texts).logits, labels).backward()
    found = [weight.grad_sample for weight in private.parameters() if weight.requires_grad]
    try:
        optimizer.step()
    except ValueError as error:
        return found, error
    return found, None


right, _ = gradients()
for reentrant in (False, True):
    found, error = gradients(use_reentrant=reentrant)
    missing = sum(gradient is None for gradient in found)
    text = f"use_reentrant={reentrant}: {missing} of {len(found)} weights without gradient, "
    if error:
        print(text + type(error).__name__)
    else:
        off = max(((a - b).norm() / b.norm()).item() for a, b in zip(found, right, strict=True)
                  if b.norm() > 1e-6)
        print(f"{text}off by {off:.1%}")
        assert off < 1e-4
    assert bool(missing) == bool(error) == (not reentrant)
PYTHON
