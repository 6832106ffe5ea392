"""Texts of two topics by authors, private and public, and the sections of a study of them."""

import csv
from pathlib import Path

import numpy as np
import yaml

WORDS = {
    "weather": "rain wind cloud storm sunny cold warm forecast thunder snow",
    "kitchen": "pan boil onion salt oven knead flour roast pepper simmer",
}
PUBLIC = {
    "sky": "cloud storm moon wind star sunny eclipse thunder planet snow",
    "shop": "flour price onion salt basket oven discount pepper cash pan",
}


def write_texts(path: Path, words: dict[str, str], count: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    with path.open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(["topic", "author", "text"])
        for number in range(count):
            topic = list(words)[number % 2]
            chosen = random.choice(words[topic].split(), size=random.integers(1, 12))
            author = f"{path.stem} {number // 4}"
            table.writerow([topic, author, f"The {', '.join(chosen)}\nand so on."])


STUDY = """
datasets:
  notes: &notes
    title: Notes
    kind: text
    source: {kind: files, train: notes_train.csv, test: notes_test.csv, label_column: topic}
    unit: author
    train_units: 250
    classes: 2
    train_size: 1000
    test_size: 200
    tokenizer: reader
    max_length: 16
  public:
    <<: *notes
    title: Public notes
    source: {kind: files, train: public_train.csv, test: public_test.csv, label_column: topic}
    train_units: 100
    train_size: 400
    test_size: 40
backbones:
  reader:
    title: Reader
    library: transformers
    architecture: distilbert
    arguments: {dim: 16, n_layers: 1, n_heads: 2, hidden_dim: 32, max_position_embeddings: 16,
      initializer_range: 0.25}
    tokenizer: {kind: train, dataset: public, vocab_size: 200}
    weights: {kind: pretrain, dataset: public, epochs: 25}
methods:
  lora: {kind: lora, rank: 2, target_modules: [q_lin, k_lin]}
sweeps:
  notes_reader_lora: {dataset: notes, backbone: reader, method: lora, epsilon: [8.0], epochs: [2],
    batch_size: [64], clipping_bound: [1.0], learning_rate: [0.01, 0.03], seeds: 1}
"""


def write_all_texts(folder: Path) -> None:
    for name, words in (("notes", WORDS), ("public", PUBLIC)):
        sizes = yaml.safe_load(STUDY)["datasets"][name]
        write_texts(folder / f"{name}_train.csv", words, sizes["train_size"], 1)
        write_texts(folder / f"{name}_test.csv", words, sizes["test_size"], 2)
