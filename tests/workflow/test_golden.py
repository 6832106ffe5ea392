"""One study of images, texts, features and embeddings, from a wheel in an empty folder.

`golden` runs it once: interrupted by Ctrl-C, to its end, with an audit and a release, and after an edit. The
tests read what each call left.
"""

import csv
import json
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from tests.waiting import called, wait_for
from tests.workflow import tiny
from tests.workflow.chain import Chain, as_in_a_terminal, vit_study

from dpsweep.planning.plan import Plan
from dpsweep.release.verify import verify
from dpsweep.study.paths import Paths

pytestmark = pytest.mark.slow

FILM, HEAD, TEXT, EMBEDDED = (
    *("pets_vit_film", "pets_frozen_head"),
    *("notes_reader_lora", "vectors_embedding_head"),
)
CELL = "eps8_epochs2_B32_C1"
ROWS, DIMENSION = {"train": 120, "test": 30}, 6


# Texts of two topics by authors, private and public.
WORDS = {
    "weather": "rain wind cloud storm sunny cold warm forecast thunder snow",
    "kitchen": "pan boil onion salt oven knead flour roast pepper simmer",
}
PUBLIC = {
    "sky": "cloud storm moon wind star sunny eclipse thunder planet snow",
    "shop": "flour price onion salt basket oven discount pepper cash pan",
}

TEXTS = """
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


def write_texts(folder: Path) -> None:
    for name, words in (("notes", WORDS), ("public", PUBLIC)):
        sizes = yaml.safe_load(TEXTS)["datasets"][name]
        for seed, split in enumerate(("train", "test"), start=1):
            random = np.random.default_rng(seed)
            with (folder / f"{name}_{split}.csv").open("w", newline="") as stream:
                table = csv.writer(stream)
                table.writerow(["topic", "author", "text"])
                for number in range(sizes[f"{split}_size"]):
                    topic = list(words)[number % 2]
                    chosen = random.choice(words[topic].split(), size=random.integers(1, 12))
                    author = f"{name}_{split} {number // 4}"
                    table.writerow([topic, author, f"The {', '.join(chosen)}\nand so on."])


def study() -> dict[str, Any]:
    """Return the study: 4 cells of images, 2 of their features, 2 of texts, 4 of embeddings."""
    texts = yaml.safe_load(TEXTS)
    content = vit_study(
        "Golden",
        {**tiny.STUDY["datasets"], **texts["datasets"], "vectors": vectors()},
        {key: tiny.STUDY["backbones"]["vit"][key] for key in ("weights", "mean", "std")},
        batch_size=[32, "full"],
        clipping_bound=[0.1, 1.0],
    )
    content["backbones"]["frozen"] = content["backbones"]["vit"] | {
        "title": "Frozen ViT",
        "features": {"pooling": "mean", "transformation": "unit-norm"},
    }
    content["backbones"]["reader"] = texts["backbones"]["reader"]
    content["backbones"]["embedding"] = {
        **{"title": "Embedding", "library": "dpsweep", "architecture": "identity"},
        **{"weights": {"kind": "none"}, "arguments": {"dimension": DIMENSION}},
    }
    content["methods"] |= texts["methods"] | {"head": {"kind": "head"}}
    film = content["sweeps"][FILM]
    content["sweeps"] |= {
        HEAD: film | {"backbone": "frozen", "method": "head", "clipping_bound": [1.0]},
        TEXT: texts["sweeps"][TEXT] | {"clipping_bound": [0.1, 1.0], "learning_rate": [0.03]},
        EMBEDDED: film
        | {"dataset": "vectors", "backbone": "embedding", "method": "head", "seeds": 1},
    }
    content["privacy"] = {"delta": 1e-3}
    setting = {"epsilon": [8.0], "batch_size": ["full"], "clipping_bound": 1.0}
    content["audit"] = setting | {
        **{"sweep": HEAD, "epochs": 2, "learning_rate": 0.01, "canaries": 30, "guesses": 10}
    }
    content["release"] = {
        **{"sweep": EMBEDDED, "epsilon": 4.0, "epochs": [2], "batch_size": ["full"]},
        **{"clipping_bound": [1.0], "learning_rate": [0.03]},
    }
    return content


def vectors() -> dict[str, Any]:
    """Return the section of the dataset of embeddings."""
    return {
        "title": "Vectors",
        "source": {"kind": "arrays", "train": "train.npz", "test": "test.npz"},
        **{"classes": 3, "dimension": DIMENSION},
        **{"train_size": ROWS["train"], "test_size": ROWS["test"]},
    }


def make_vectors(folder: Path) -> None:
    """Write embeddings around the centres of three classes."""
    random = np.random.default_rng(0)
    centres = 3 * random.normal(size=(3, DIMENSION))
    for split, count in ROWS.items():
        labels = np.arange(count) % 3
        x = centres[labels] + random.normal(size=(count, DIMENSION))
        np.savez(folder / f"{split}.npz", x=x.astype(np.float32), y=labels)


@dataclass
class Golden:
    """The study, and what its calls left.

    Attributes:
        chain: the study, edited, and its results.
        interrupted: trials after Ctrl-C, and the exit status.
        trials: of the finished study before the edit.
        planned: jobs of `dpsweep plan` and of the dry run, before the first call and after the edit.
        said: output by call.
    """

    chain: Chain
    interrupted: tuple[dict[str, int], int]
    trials: dict[str, int]
    planned: list[tuple[Counter[str], Counter[str]]]
    said: dict[str, str]

    def rows(self, problem: str) -> pd.DataFrame:
        """Return the trials of a problem."""
        return pd.read_parquet(self.chain.results / "problems" / f"{problem}.parquet")


def jobs(chain: Chain, said: str) -> tuple[Counter[str], Counter[str]]:
    """Return how many jobs are planned by dpsweep, and by Snakemake's dry run."""
    would = Counter[str]()
    for title, count in re.findall(r"^ *(\w[\w ]*?) +(\d+) *$", said, re.MULTILINE):
        would[title.replace(" ", "_")] = int(count)
    planned = Counter[str]()
    for name, estimate in Plan(chain.parsed, Paths(chain.results)).estimates().items():
        planned["train"] += estimate.cells
        for title, rule in (("gradient norms", "gradient_norms"), ("theory", "theory")):
            if found := re.fullmatch(rf"{title} \((\d+)\)", name):
                planned[rule] += int(found[1])
    return planned, would


@pytest.fixture(scope="module")
def golden(installed: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Golden:
    folder = tmp_path_factory.mktemp("golden")
    tiny.make_images(folder)
    write_texts(folder)
    make_vectors(folder)
    chain = Chain(folder, study())
    environment = {**installed, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    said = dict[str, str]()

    def run(name: str, *words: str) -> None:
        command = [sys.executable, "-m", "dpsweep", *words]
        done = called(command, folder, environment, status=None)
        said[name] = done.stdout + done.stderr
        assert done.returncode == 0, said[name] + chain.logs()

    dry = ("run", "study.yaml", "--", "-n", "--quiet", "rules")
    run("dry", *dry)
    planned = [jobs(chain, said["dry"])]
    first = as_in_a_terminal(
        [sys.executable, "-m", "dpsweep", "run", "study.yaml"],
        folder, environment, folder / "said.txt",
    )  # fmt: skip
    wait_for(chain.stored_trials, "a finished trial", first, every=0.01)
    os.killpg(first.pid, signal.SIGINT)
    status = first.wait()
    said["interrupted"] = (folder / "said.txt").read_text()
    interrupted = chain.stored_trials(), status
    run("all", "run", "study.yaml")
    trials = chain.stored_trials()
    run("again", "run", "study.yaml")
    run("audit", "run", "study.yaml", "audit")
    run("release", "run", "study.yaml", "release")
    # Other pooling of features, and another clipping bound.
    chain.study["backbones"]["frozen"]["features"]["pooling"] = "token"
    chain.study["sweeps"][FILM]["clipping_bound"] = [0.1, 1.0, 10.0]
    chain.write()
    run("dry after edit", *dry)
    planned.append(jobs(chain, said["dry after edit"]))
    run("edited", "run", "study.yaml")
    return Golden(chain, interrupted, trials, planned, said)


def test_a_plan_counts_the_jobs_of_a_dry_run(golden: Golden) -> None:
    """After the edit: two more cells of images; other features, and so the two cells that read them."""
    for planned, would in golden.planned:
        for rule in ("train", "gradient_norms", "theory"):
            assert planned[rule] == would[rule], rule
    (first, _), (_, would) = golden.planned
    assert first["train"] == 12
    expected = {"train": 4, "features": 1, "aggregate": 2}
    expected |= dict.fromkeys(
        ("prepare_dataset", "prepare_tokenizer", "prepare_backbone", "calibrate"), 0
    )
    assert {rule: would[rule] for rule in expected} == expected


def test_ctrl_c_ends_a_run_that_the_same_call_continues(golden: Golden) -> None:
    before, status = golden.interrupted
    said = golden.said["interrupted"]
    assert status != 0 and before
    # Python prints a traceback of its own where Ctrl-C comes while it starts a command.
    assert said.count("Traceback") <= said.count("KeyboardInterrupt")
    mistakes = [Path(each).read_text() for each in re.findall(r"\S+dpsweep-error-\S+", said)]
    assert not mistakes, mistakes
    assert before.items() <= golden.trials.items()  # no trial was trained twice
    assert "Nothing to be done" in golden.said["again"]


def test_an_edit_trains_only_new_trials(golden: Golden) -> None:
    after = golden.chain.stored_trials()
    assert golden.trials.items() <= after.items()
    # Each cell of images or features: two rates with one seed, and the best one with another.
    assert len(golden.trials) == 3 * (4 + 2) + 2 * 1 + 2 * 4
    assert len(after) - len(golden.trials) == 3 * (2 + 2)


def test_repeat_best_trains_the_grid_once_and_repeats_the_best(golden: Golden) -> None:
    rows = pd.read_parquet(golden.chain.folder / golden.chain.cell_file(CELL, FILM))
    assert len(rows) == 3
    first = rows[rows["seed"] == 1]
    best = first.loc[first["macro_accuracy"].idxmax(), "learning_rate"]
    assert rows[rows["seed"] == 2]["learning_rate"].tolist() == [best]
    assert rows[rows["best"]]["learning_rate"].unique().tolist() == [best]


def test_every_kind_of_input_trains_with_its_certificate(golden: Golden) -> None:
    """Images, features of a network, tokens of texts, and embeddings."""
    results = golden.chain.results
    films, heads, texts, embedded = map(golden.rows, (FILM, HEAD, TEXT, EMBEDDED))
    for rows in (films, heads, texts, embedded):
        assert rows["certified_epsilon"].between(0.998 * 8, 8).all()
        assert not rows["diverged"].any()
    features = np.load(results / "features" / "pets" / "frozen" / "train_inputs.npy")
    assert features.shape == (96, 16)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, rtol=1e-5)
    assert heads["trainable_parameters"].eq(tiny.CLASSES * (16 + 1)).all()
    tokens = np.load(results / "data" / "notes" / "train_inputs.npy")
    assert tokens.shape == (1000, 16)
    lengths = (tokens >= 0).sum(1)
    assert len(set(lengths)) > 5 and lengths.max() == 16
    assert texts["train_size"].eq(250).all() and texts["unit_accuracy"].between(0, 1).all()
    # Half of the words of each topic are in the public texts.
    assert texts["macro_accuracy"].max() > 0.55 and texts["loss"].min() < np.log(2)
    assert embedded["trainable_parameters"].eq(3 * (DIMENSION + 1)).all()
    assert embedded["accuracy"].max() > 0.6  # by chance 1/3


def test_the_report_shows_every_target(golden: Golden) -> None:
    results, parsed = golden.chain.results, golden.chain.parsed
    page = (results / "report.html").read_text()
    assert all(f'id="target-{name}"' in page for name in (*parsed.figures, *parsed.tables))
    assert {file.stem for file in results.glob("figures/*.pdf")} == set(parsed.figures)
    assert "0.1 1 10" in (results / "tables" / "grid.csv").read_text()


def test_the_audit_refutes_nothing_and_the_release_verifies(golden: Golden) -> None:
    assert "refutes none of 1 claims" in golden.said["audit"]
    (file,) = (golden.chain.results / "audit").glob("eps*.json")
    audit = json.loads(file.read_text())
    assert audit["consistent"] and audit["examples"] == 96
    assert "differentially private" in golden.said["release"]
    certificate = verify(golden.chain.results / "release")
    assert certificate.certified_epsilon <= certificate.epsilon == 4
    assert (certificate.network.kind, certificate.network.shape) == ("embedding", [DIMENSION])
