"""All stages of a small study of texts, run by their commands."""

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from tests.described import described

from dpsweep.base.files import checksum, read_checked_json, write_checked_json
from dpsweep.cli.main import app
from dpsweep.release import CARD, CERTIFICATE, TOKENIZER, ReleaseError
from dpsweep.release.verify import verify

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
        table.writerow(["topic", "number", "text"])
        for number in range(count):
            topic = list(words)[number % 2]
            chosen = random.choice(words[topic].split(), size=random.integers(1, 12))
            table.writerow([topic, number, f"The {', '.join(chosen)}\nand so on."])


STUDY = """
title: Smallest chain of texts
datasets:
  notes: &notes
    title: Notes
    kind: text
    source: {kind: files, train: notes_train.csv, test: notes_test.csv, label_column: topic}
    classes: 2
    train_size: 1000
    test_size: 200
    tokenizer: reader
    max_length: 16
  public:
    <<: *notes
    title: Public notes
    source: {kind: files, train: public_train.csv, test: public_test.csv, label_column: topic}
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
roles:
  datasets: {main: notes}
  backbones: {weak: reader}
  methods: {main: lora}
figures:
  map: &map
    family: heatmap
    section: Figures
    caption: What was measured.
    panels: [{title: map, epsilon: 8.0, epochs: 2, batch_size: 64, clipping_bound: 1.0}]
  norms:
    <<: *map
    family: gradient_norm_distribution
    panels: [{title: norms, epsilon: 8.0, epochs: 2, batch_size: 64, clipping_bound: 1.0}]
tables:
  data: {family: datasets, section: Tables, caption: The data.}
audit: {sweep: notes_reader_lora, epsilon: [8.0], epochs: 2, batch_size: [full], clipping_bound: 1.0,
  learning_rate: 0.01, canaries: 100, guesses: 20}
release: {sweep: notes_reader_lora, epsilon: 8.0, epochs: [2], batch_size: [64], clipping_bound: [1.0],
  learning_rate: [0.03]}
"""


def write_all_texts(folder: Path) -> None:
    for name, words in (("notes", WORDS), ("public", PUBLIC)):
        sizes = yaml.safe_load(STUDY)["datasets"][name]
        write_texts(folder / f"{name}_train.csv", words, sizes["train_size"], 1)
        write_texts(folder / f"{name}_test.csv", words, sizes["test_size"], 2)


@pytest.mark.nightly
def test_every_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_all_texts(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.yaml").write_text(
        yaml.safe_dump(described(yaml.safe_load(STUDY), tmp_path) | {"results": "results"})
    )

    def run(*command: str) -> None:
        app([*command, "--study", "study.yaml"], standalone_mode=False)

    run("prepare-tokenizer", "reader")
    run("prepare-dataset", "public")
    run("prepare-dataset", "notes")
    run("prepare-backbone", "reader")
    run("calibrate", "notes", "8", "2", "64")
    run("train", "notes_reader_lora", "eps8_epochs2_B64_C1")
    run("gradient-norms", "notes_reader_lora", "8", "2", "1")
    run("audit-setting", "eps8_epochs2_Bfull_C1")

    results = tmp_path / "results"
    tokens = np.load(results / "data" / "notes" / "train_inputs.npy")
    assert tokens.shape == (1000, 16)
    lengths = (tokens >= 0).sum(1)
    assert len(set(lengths)) > 5 and lengths.max() == 16
    notes, public, reader = (
        json.loads((results / place / "metadata.json").read_text())
        for place in ("data/notes", "data/public", "backbones/reader")
    )
    assert notes["tokenizer"] == public["tokenizer"] == reader["tokenizer"]
    assert reader["pretraining"]["accuracy"] > 0.9

    cell = results / "cells" / "notes_reader_lora" / "eps8_epochs2_B64_C1"
    trials = pd.read_parquet(next(cell.glob("trials-*.parquet")))
    assert len(trials) == 2
    assert not trials["diverged"].any()
    # Half of the words of each topic are in the public texts, so even private training separates the topics.
    assert trials["macro_accuracy"].max() > 0.55
    assert trials["loss"].min() < np.log(2)
    norms = pd.read_parquet(next((results / "gradnorms").glob("*/eps8_epochs2_C1-*.parquet")))
    assert len(norms) == 2 * 1000
    assert (norms["head_norm"] <= norms["norm"] * (1 + 1e-6)).all()
    assert norms["norm"].min() > 0
    audit = json.loads((results / "audit" / "eps8_epochs2_Bfull_C1.json").read_text())
    assert audit["examples"] == 1000

    run("release")
    certificate = verify(results / "release")
    monkeypatch.chdir(results / "release")
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", Path(CARD).read_text(), re.DOTALL):
        exec(code, names)  # noqa: S102 (it is ours)
    with (tmp_path / "notes_test.csv").open() as stream:
        read = [
            names["classes"][names["model"](names["prepare"](row["text"])).logits.argmax().item()]
            == row["topic"]
            for row in csv.DictReader(stream)
        ]
    assert np.mean(read) == pytest.approx(certificate.test_accuracy, abs=1e-3)

    content = read_checked_json(Path(CERTIFICATE))
    Path(TOKENIZER).write_text(Path(TOKENIZER).read_text().replace("thunder", "blunder"))
    with pytest.raises(ReleaseError, match=r"tokenizer\.json: is not the file"):
        verify(Path())
    content["files"][TOKENIZER] = checksum(Path(TOKENIZER))
    write_checked_json(Path(CERTIFICATE), content)
    with pytest.raises(ReleaseError, match=r"network\.tokenizer\.checksum: found"):
        verify(Path())
