#!/usr/bin/env bash
# Believed: A network in eval mode differs from train mode by dropout and batch statistics. Its
# trainable parameters get gradients, and its outputs follow their updates.
# Happens: LeViT, TinyViT and EfficientFormer cache their attention biases at the first eval pass.
# Later passes in eval mode give them no gradient, and changes of them do not change the
# logits until `train()` is called. DP training often runs in eval mode.
# Advice: Train in train mode with dropout off, or freeze these biases knowingly.
# Versions: timm 1.0.31, torch 2.15.0. Seen on 2026-11-28.
# Output:
#   levit_128s: 11 parameters without gradient; move the logits after train()
#   tiny_vit_5m_224: 10 parameters without gradient; move the logits after train()
#   efficientformer_l1: 1 parameters without gradient; move the logits after train()
#   vit_relpos_small_patch16_224: 0 parameters without gradient; nothing hidden
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 timm==1.0.31 numpy==2.4.6
export OMP_NUM_THREADS=1
"$folder/bin/python" -W ignore - <<'PYTHON'
import timm
import torch

for name in ("levit_128s", "tiny_vit_5m_224", "efficientformer_l1", "vit_relpos_small_patch16_224"):
    model = timm.create_model(name, num_classes=5).eval()
    images = torch.randn(1, *model.default_cfg["input_size"])
    with torch.no_grad():
        model(images)
    names, parameters = zip(*model.named_parameters())
    found = torch.autograd.grad(model(images).sum(), parameters, allow_unused=True)
    without = [name for name, gradient in zip(names, found) if gradient is None]
    with torch.no_grad():
        before = model(images)
        for parameter in (dict(model.named_parameters())[each] for each in without):
            parameter.add_(1.0 + torch.rand_like(parameter))
        cached = torch.equal(before, model(images))
        moved = not torch.equal(before, model.train().eval()(images)) if without else False
    print(f"{name}: {len(without)} parameters without gradient; {'move the logits after train()' if moved else 'nothing hidden'}")
    assert cached and moved == (name != "vit_relpos_small_patch16_224")
PYTHON
