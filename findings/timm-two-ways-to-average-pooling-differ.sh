#!/usr/bin/env bash
# Believed: A timm ViT pools tokens in the same way after `create_model(name, global_pool="avg")` and after
# `reset_classifier(0, "avg")`, with the same pretrained weights.
# Happens: The first puts a norm `fc_norm` after the mean and refuses the weights of a network with a class
# token ("Missing key fc_norm.weight"). The second keeps the norm before the mean, without a word. With
# the same weights the features are half as long and point elsewhere, so that a clipping bound or a
# learning rate of one does not fit the other.
# Advice: Say which of the two is used; move `norm` to `fc_norm` in the weights for the first.
# Versions: timm 1.0.31, torch 2.15.0 (CPU), torchvision 0.29.2. Seen on 2026-11-28.
# Output:
#   create_model with avg: weights refused, Missing key(s) in state_dict: "fc_norm.weight", "fc_norm.bias".
#   create_model with avg, norm moved: length 15.4, off by 0% from a norm of the mean
#   reset_classifier with avg: length 7.7, off by 0% from the mean of norms
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 torchvision==0.29.2 numpy==2.4.6 timm==1.0.31
export OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1
"$folder/bin/python" -W ignore - <<'PYTHON'
import timm
import torch
from torch.nn.functional import layer_norm

NAME, SIZE = "vit_tiny_patch16_224", {"img_size": 32, "depth": 2}
torch.manual_seed(0)
reset = timm.create_model(NAME, num_classes=10, **SIZE).eval()
torch.nn.init.normal_(reset.norm.weight, 1.0, 0.5)
weights = {name: value for name, value in reset.state_dict().items() if "head" not in name}
made = timm.create_model(NAME, num_classes=0, global_pool="avg", **SIZE).eval()
refused = ""
try:
    made.load_state_dict(weights)
except RuntimeError as error:
    refused = str(error).splitlines()[1].strip()
print(f"create_model with avg: weights refused, {refused}")
made.load_state_dict({f"fc_{name}" if name.startswith("norm.") else name: value
                      for name, value in weights.items()})
reset.reset_classifier(0, "avg")
images = torch.randn(8, 3, 32, 32)
with torch.no_grad():
    tokens = made.forward_features(images)[:, 1:]
    norm = {"weight": weights["norm.weight"], "bias": weights["norm.bias"], "eps": reset.norm.eps}
    after = layer_norm(tokens.mean(1), (192,), **norm)
    before = layer_norm(tokens, (192,), **norm).mean(1)
    features = {"made": made(images), "reset": reset(images)}
long = {name: found.norm(dim=1).mean().item() for name, found in features.items()}
off = {name: ((features[name] - right).norm() / right.norm()).item()
       for name, right in (("made", after), ("reset", before))}
print(f"create_model with avg, norm moved: length {long['made']:.1f}, off by {off['made']:.0%} from a norm of the mean")
print(f"reset_classifier with avg: length {long['reset']:.1f}, off by {off['reset']:.0%} from the mean of norms")
assert "fc_norm.weight" in refused and max(off.values()) < 1e-3 and long["made"] > 1.5 * long["reset"]
PYTHON
