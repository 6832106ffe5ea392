#!/usr/bin/env bash
# Believed: `create_model(name, num_classes=100)` and `create_model(name)` followed by
# `reset_classifier(100)` start from heads of the same distribution.
# Happens: `reset_classifier` leaves torch's default of a linear layer. In 26 of 30 families that
# were tried the head differs: a ViT's weights are twice as large and its bias is not zero,
# EfficientNet's are 3.6 times smaller, a Mixer's zeros become random.
# Advice: Set the head's first weights yourself, since private training takes few steps.
# Versions: timm 1.0.31, torch 2.15.0. Seen on 2026-11-28.
# Output:
#   vit_tiny_patch16_224: standard deviation 0.0198 and 0.0415, bias up to 0.000 and 0.072
#   efficientnet_lite0: standard deviation 0.0579 and 0.0161, bias up to 0.000 and 0.028
#   mixer_s16_224: standard deviation 0.0000 and 0.0254, bias up to 0.000 and 0.044
#   resnet18: standard deviation 0.0256 and 0.0255, bias up to 0.044 and 0.044
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

for name in ("vit_tiny_patch16_224", "efficientnet_lite0", "mixer_s16_224", "resnet18"):
    torch.manual_seed(0)
    created, reset = timm.create_model(name, num_classes=100), timm.create_model(name)
    reset.reset_classifier(100)
    scales = [each.get_classifier().weight.std().item() for each in (created, reset)]
    biases = [each.get_classifier().bias.abs().max().item() for each in (created, reset)]
    print(f"{name}: standard deviation {scales[0]:.4f} and {scales[1]:.4f}, bias up to {biases[0]:.3f} and {biases[1]:.3f}")
    same = abs(scales[0] / (scales[1] or 1) - 1) < 0.1 and (biases[0] > 0) == (biases[1] > 0)
    assert same == (name == "resnet18")
PYTHON
