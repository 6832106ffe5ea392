"""Studies of real images and texts, through the whole workflow (`make real-data`, docs/findings.md)."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from tests.workflow.chain import ROOT, Workflow

from dpsweep.study import load_study
from dpsweep.study.paths import Paths

pytestmark = pytest.mark.real_data

STUDIES, SHARED = ROOT / "studies", ROOT.parent / "shared"
CIFAR, NEWSGROUPS = SHARED / "data" / "cifar100", SHARED / "data" / "20_newsgroups"
VIT = SHARED / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
ENCODER = SHARED / "weights" / "all-MiniLM-L6-v2"
FASHION = STUDIES / "fashion-mnist.yaml"
FASHION_DATA = Path(load_study(FASHION).datasets["fashion-mnist"].source.path)


def needs(*folders: Path) -> pytest.MarkDecorator:
    missing = [str(each) for each in folders if not each.is_dir()]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


def train(
    folder: Path, name: str, overlay: dict[str, Any], replaced: Any = (), sweep: str | None = None
) -> tuple[pd.DataFrame, Paths]:
    """Train the cells of a study, or of one of its sweeps; return the rows of their trials.

    Snakemake runs in ``folder``, apart from another one in the repository.

    Args:
        folder: for the study and its results.
        name: the study to extend.
        overlay: its additional keys.
        replaced: sections that replace those of the study.
        sweep: of the study; by default all of them.
    """
    results = {"extends": str(STUDIES / name), "results": str(folder / "results")}
    lines = [f"{key}: !replace {json.dumps(value)}\n" for key, value in dict(replaced).items()]
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(results | overlay) + "".join(lines))
    study = load_study(file)
    paths = Paths(Path(study.results))
    cells = study.all_cells() if sweep is None else study.sweep_cells(sweep)
    outputs = [paths.cell_trials(study, cell) for cell in cells]
    Workflow(folder, file.name, study.results).run(*map(str, outputs))
    return pd.concat(map(pd.read_parquet, outputs)), paths


@pytest.mark.nightly
@needs(FASHION_DATA)
def test_the_published_accuracy_is_reached(tmp_path: Path) -> None:
    rows, _ = train(tmp_path, FASHION.name, {}, sweep="published")
    print(rows[["seed", "accuracy", "noise_multiplier", "certified_epsilon"]].to_string())  # noqa: T201
    assert len(rows) == 3
    assert (rows["certified_epsilon"] <= 3).all()
    # Tramer and Boneh (2021) report 0.897; a test set of 10,000 has a standard error of 0.003.
    assert rows["accuracy"].mean() >= 0.895


@pytest.mark.slow
@needs(CIFAR, NEWSGROUPS, VIT, ENCODER)
def test_features_of_real_images_and_texts_reach_good_accuracy(tmp_path: Path) -> None:
    datasets = {
        "cifar100-10pct": {"source": {"path": str(CIFAR), "test_share": 0.1}, "test_size": 1000},
        "20newsgroups": {"source": {"path": str(NEWSGROUPS)}, "max_length": 32},
    }
    backbones = {
        "vit-tiny": {"weights": {"path": str(VIT / "model.safetensors")}},
        "minilm": {
            "weights": {"path": str(ENCODER / "model.safetensors")},
            "tokenizer": {"path": str(ENCODER / "tokenizer.json")},
        },
    }
    # Train only two cells, and draw nothing.
    grid = {"method": "head", "epsilon": [8.0], "epochs": [8], "batch_size": [1024], "seeds": 2}
    images = {"dataset": "cifar100-10pct", "backbone": "vit-tiny", "clipping_bound": [8.0]}
    texts = {"dataset": "20newsgroups", "backbone": "minilm", "clipping_bound": [1.0]}
    sweeps = {
        "images": grid | images | {"learning_rate": [0.016]},
        "texts": grid | texts | {"learning_rate": [0.064]},
    }
    replaced = {"sweeps": sweeps, "roles": {}}
    overlay = {"datasets": datasets, "backbones": backbones, "figures": "none"}
    rows, _ = train(tmp_path, "frozen-features-local.yaml", overlay, replaced)
    accuracy = rows.groupby("dataset")["accuracy"].mean()
    print(accuracy.to_string())  # noqa: T201 (what the check has measured)
    # Guessing gives 0.01 and 0.05.
    assert accuracy["cifar100-10pct"] >= 0.25
    assert accuracy["20newsgroups"] >= 0.4


@pytest.mark.nightly
@needs(CIFAR, VIT)
def test_private_training_needs_pretraining(tmp_path: Path) -> None:
    # A quarter of the study's work: fewer pixels and half of its epochs.
    small = {"arguments": {"img_size": 96}}
    short = {"epochs": [2], "learning_rate": [0.016]}
    overlay = {
        "datasets": {"cifar100-10pct": {"image_size": 96, "source": {"path": str(CIFAR)}}},
        "backbones": {
            "vit-tiny": {"weights": {"path": str(VIT / "model.safetensors")}} | small,
            "vit-tiny-random": small,
        },
        "sweeps": dict.fromkeys(load_study(STUDIES / "real-data.yaml").sweeps, short),
    }
    trials = train(tmp_path, "real-data.yaml", overlay)[0].set_index("backbone")
    columns = ["accuracy", "steps", "noise_multiplier", "certified_epsilon", "wall_seconds"]
    print(trials[columns].to_string())  # noqa: T201 (what the check has measured)
    assert trials["certified_epsilon"].between(7.9, 8).all()
    # The same steps, noise and number of trained parameters; only the weights differ.
    assert (trials[["steps", "noise_multiplier", "trainable_parameters"]].nunique() == 1).all()
    pretrained, random = (trials.loc[name, "accuracy"] for name in ("vit-tiny", "vit-tiny-random"))
    assert pretrained >= 0.25
    assert pretrained >= random + 0.20


@pytest.mark.nightly
@needs(NEWSGROUPS)
def test_newsgroups_are_read_trained_on_and_measured(tmp_path: Path) -> None:
    overlay = {"datasets": {"20newsgroups": {"source": {"path": str(NEWSGROUPS)}}}}
    rows, paths = train(tmp_path, "real-newsgroups.yaml", overlay)
    tokens = np.load(paths.dataset("20newsgroups") / "train_inputs.npy", mmap_mode="r")
    assert tokens.shape == (11314, 96)
    trials = rows.set_index("method")
    columns = ["accuracy", "loss", "steps", "noise_multiplier", "wall_seconds"]
    print(trials[columns].to_string())  # noqa: T201
    public, private = (trials.loc[method] for method in ("all", "lora"))
    # Training starts with a head of zeros, and so with a loss of log(20).
    start = math.log(20)
    assert public["loss"] < start - 0.3
    assert public["accuracy"] > 3 / 20
    # Random features and noise leave little accuracy; this is four standard errors above guessing.
    assert private["loss"] < start - 0.01
    assert private["accuracy"] > 0.06
    assert 7.9 < private["certified_epsilon"] <= 8
    study = load_study(tmp_path / "study.yaml")
    norms = paths.gradient_norms(study, "20newsgroups_distilbert-small_lora", 8.0, 3, 1.0)
    Workflow(tmp_path, "study.yaml", study.results).run(str(norms))
    measured = pd.read_parquet(norms)
    assert len(measured) == 3 * 11314
    assert np.isfinite(measured["norm"]).all()
