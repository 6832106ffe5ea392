#!/usr/bin/env bash
# Believed: With an attention mask, the logits of a classifier of transformers do not depend on
# right padding, but for XLNet, which reads the last position, and FNet, which takes no
# mask.
# Happens: They depend on it for YOSO and CANINE too, by 2 % and 0.5 % of the largest logit. A row's
# gradient then depends on the longest text of its batch. BERT, DeBERTa, ModernBERT,
# Funnel, MRA, Longformer, GPT-2, T5 and others are right.
# Advice: Pad to one fixed length, or choose another encoder.
# Versions: transformers 5.23.0, torch 2.15.0. Seen on 2026-11-28.
# Output:
#   Bert: padding moves the logits by 1.7e-07
#   Mra: padding moves the logits by 0.0e+00
#   Longformer: padding moves the logits by 0.0e+00
#   FNet: padding moves the logits by 4.9e-01
#   Yoso: padding moves the logits by 1.7e-02
#   Canine: padding moves the logits by 5.3e-03
#   XLNet: padding moves the logits by 1.7e+00
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" torch==2.15.0 transformers==5.23.0 numpy==2.4.6
export OMP_NUM_THREADS=1
"$folder/bin/python" -W ignore - <<'PYTHON'
import torch
import transformers

transformers.logging.set_verbosity_error()
torch.manual_seed(0)
COMMON = {
    **{"vocab_size": 100, "num_labels": 3, "pad_token_id": 0, "hidden_size": 32, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 64},
}
CASES = {
    "Bert": {}, "Mra": {}, "Longformer": {"attention_window": 8}, "FNet": {}, "Yoso": {},
    "Canine": {"downsampling_rate": 4, "local_transformer_stride": 8},
    "XLNet": {"d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64},
}
DEPEND = {"XLNet", "FNet", "Yoso", "Canine"}
for name, options in CASES.items():
    common = COMMON if name != "XLNet" else {"vocab_size": 100, "num_labels": 3, "pad_token_id": 0}
    config = getattr(transformers, f"{name}Config")(**common, **options)
    model = getattr(transformers, f"{name}ForSequenceClassification")(config).eval()
    tokens, padding = torch.randint(5, 100, (2, 9)), torch.zeros(2, 23, dtype=torch.long)
    masks = torch.ones_like(tokens), torch.cat([torch.ones_like(tokens), padding], 1)
    with torch.no_grad():
        short = model(input_ids=tokens, attention_mask=masks[0]).logits
        long = model(input_ids=torch.cat([tokens, padding], 1), attention_mask=masks[1]).logits
    change = ((short - long).abs().max() / short.abs().max()).item()
    print(f"{name}: padding moves the logits by {change:.1e}")
    assert (change > 1e-3) == (name in DEPEND)
PYTHON
