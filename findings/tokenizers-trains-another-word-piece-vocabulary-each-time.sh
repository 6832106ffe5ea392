#!/usr/bin/env bash
# Believed: A WordPiece vocabulary that is trained twice on the same texts is the same, as that of
# BPE is.
# Happens: Pieces get other numbers in each process, and now and then other pieces are chosen: the
# trainer numbers the characters inside words in the order of a random hash, and breaks ties by
# these numbers. A network that was trained with one vocabulary reads other tokens with the next.
# BPE repeats.
# Advice: Save the trained tokenizer with the network, or give the trainer the pieces `##x` as
# special tokens in a fixed order.
# Versions: tokenizers 0.22.1 and 0.23.3. Seen on 2026-11-28.
# Output:
#   0.22.1 WordPiece: more than one vocabulary in 5 processes
#   0.22.1 BPE: one vocabulary in 5 processes
#   0.23.3 WordPiece: more than one vocabulary in 5 processes
#   0.23.3 BPE: one vocabulary in 5 processes
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet uv
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" tokenizers==0.22.1
cat > "$folder/train.py" <<'PYTHON'
import random
import sys

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

random.seed(0)
words = ["".join(random.choices("abcdefghij", k=random.randint(2, 8))) for _ in range(300)]
texts = [" ".join(random.choices(words, k=20)) for _ in range(200)]
kind = sys.argv[1]
trainer = {"WordPiece": trainers.WordPieceTrainer, "BPE": trainers.BpeTrainer}[kind]
tokenizer = Tokenizer(getattr(models, kind)(unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer.train_from_iterator(texts, trainer(vocab_size=300, special_tokens=["[UNK]"], show_progress=False))
vocabulary = tokenizer.get_vocab()
print(*sorted(vocabulary, key=vocabulary.get))
PYTHON
for version in 0.22.1 0.23.3; do
    "$folder/bin/uv" pip install --quiet --python "$folder/bin/python" "tokenizers==$version"
    for kind in WordPiece BPE; do
        count=$(for _ in 1 2 3 4 5; do "$folder/bin/python" "$folder/train.py" "$kind"; done | sort -u | wc -l)
        found=$([ "$count" = 1 ] && echo one || echo more than one)
        echo "$version $kind: $found vocabulary in 5 processes"
        [ "$found" = "$([ "$kind" = BPE ] && echo one || echo more than one)" ]
    done
done
