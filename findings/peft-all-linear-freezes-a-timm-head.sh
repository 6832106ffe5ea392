#!/usr/bin/env bash
# Believed: `target_modules="all-linear"` adapts the layers of the backbone and leaves the
# classifier alone.
# Happens: It spares the output layer of transformers' networks. In a timm network the head is a
# linear layer like others: it gets LoRA, its new random weights are frozen, and only a change of
# rank 1 trains. `modules_to_save=["head"]` takes it out again, and trains it.
# Advice: Name the head in `modules_to_save`, and list what trains before the budget is spent.
# Versions: peft 0.21.2, timm 1.0.31, transformers 5.23.0, torch 2.15.0 (CPU). Seen on 2026-11-28.
# Output:
#   timm, all-linear: the head trains lora_A, lora_B; its weight is frozen
#   timm, all-linear and modules_to_save: the head trains bias, weight
#   transformers, all-linear, SEQ_CLS: the head trains bias, weight
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 numpy==2.4.6 peft==0.21.2 timm==1.0.31 transformers==5.23.0
export OMP_NUM_THREADS=1
export HF_HUB_OFFLINE=1
"$folder/bin/python" -W ignore - <<'PYTHON'
import timm
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification


def vit():
    return timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=5, depth=1)


def bert():
    size = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return BertForSequenceClassification(BertConfig(**size, intermediate_size=64))


def trains(network, head, **options):
    network = get_peft_model(network, LoraConfig(r=1, target_modules="all-linear", **options))
    names = (name for name, each in network.named_parameters() if each.requires_grad and f".{head}." in name)
    return sorted({name.split(".")[-3 if "lora" in name else -1] for name in names})


adapted = trains(vit(), "head")
print(f"timm, all-linear: the head trains {', '.join(adapted)}; its weight is frozen")
saved = trains(vit(), "head", modules_to_save=["head"])
print(f"timm, all-linear and modules_to_save: the head trains {', '.join(saved)}")
spared = trains(bert(), "classifier", task_type="SEQ_CLS")
print(f"transformers, all-linear, SEQ_CLS: the head trains {', '.join(spared)}")
assert adapted == ["lora_A", "lora_B"] and saved == spared == ["bias", "weight"]
PYTHON
