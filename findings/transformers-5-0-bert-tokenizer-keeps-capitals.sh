#!/usr/bin/env bash
# Believed: A vocabulary gives the same tokens in all releases of transformers 5, and `BertTokenizer`
# lower-cases unless it is told otherwise, as it did in transformers 4.
# Happens: In 5.0.0 it does not, without a word, and neither do those of ELECTRA, MobileBERT and
# LayoutLM; those of DistilBERT and MPNet do. With the vocabulary of an uncased network each word
# with a capital or an accent becomes [UNK]. In 5.24.0 all lower-case again.
# Advice: Pass `do_lower_case=True`, or load `tokenizer.json`, and count [UNK] in the first texts.
# Versions: transformers 4.57.1, 5.0.0 and 5.24.0. Seen on 2026-11-28.
# Output:
#   transformers 4.57.1: BERT the cat sat, ELECTRA the cat sat, DistilBERT the cat sat
#   transformers 5.0.0: BERT [UNK] cat [UNK], ELECTRA [UNK] cat [UNK], DistilBERT the cat sat
#   transformers 5.24.0: BERT the cat sat, ELECTRA the cat sat, DistilBERT the cat sat
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
printf '%s\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]' the cat sat > "$folder/vocab.txt"
cat > "$folder/read.py" <<'PYTHON'
import sys
from pathlib import Path

import transformers

classes = {
    "BERT": transformers.BertTokenizerFast,
    "ELECTRA": transformers.ElectraTokenizerFast,
    "DistilBERT": transformers.DistilBertTokenizerFast,
}
folder = str(Path(sys.argv[0]).parent)
found = {
    name: " ".join(each.from_pretrained(folder).tokenize("The cat SAT")) for name, each in classes.items()
}
explicit = classes["BERT"].from_pretrained(folder, do_lower_case=True)
print(f"transformers {transformers.__version__}: {', '.join(map(' '.join, found.items()))}")
keeps = transformers.__version__ == "5.0.0"
assert found["BERT"] == found["ELECTRA"] == ("[UNK] cat [UNK]" if keeps else "the cat sat")
assert found["DistilBERT"] == " ".join(explicit.tokenize("The cat SAT")) == "the cat sat"
PYTHON
for version in 4.57.1 5.0.0 5.24.0; do
    python3 -m venv "$folder/$version"
    "$folder/$version/bin/pip" install --quiet uv
    "$folder/$version/bin/uv" pip install --quiet --python "$folder/$version/bin/python" "transformers==$version"
    TRANSFORMERS_VERBOSITY=error HF_HUB_OFFLINE=1 "$folder/$version/bin/python" -W ignore "$folder/read.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
done
