"""A small study, and result files for it with known numbers, in the formats of docs/files.md."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import yaml
from pyarrow.parquet import write_table

from dpsweep import TRAINER_VERSION
from dpsweep.base.files import fingerprint, write_checked_json
from dpsweep.study import Cell, Study
from dpsweep.study.cells import optimizer_steps
from dpsweep.study.paths import Paths
from dpsweep.theory import ClippedSums
from tests.described import study_of

CHECKSUM = "0" * 64
"""The checksum of the data and weights of every trial."""
ACCURACIES = [
    "accuracy",
    "macro_accuracy",
    "selection_accuracy",
    "last_accuracy",
    "last_macro_accuracy",
]
# Returns columns of a trial: any of macro_accuracy, per_class_accuracy, diverged, noise_multiplier, ...
Outcome = Callable[[Cell, float, int], dict[str, Any]]


STUDY = """
title: Synthetic
datasets:
  digits: {title: Digits, source: {kind: sklearn-digits}, test_size: 200, image_size: 8,
    description: Handwritten digits.}
backbones:
  small: {architecture: vit_tiny_patch16_224, weights: {kind: random}}
methods:
  film: {kind: film}
  lora: {kind: lora, rank: 1, target_modules: [qkv]}
sweeps:
  one: {dataset: digits, method: film, epsilon: [8.0], epochs: [2], batch_size: [100], clipping_bound: [1.0],
    learning_rate: [0.01], seeds: 1}
roles:
  datasets: {main: digits}
  methods: {main: film, lora: lora}
"""


def make_study(
    sweeps: dict[str, dict[str, Any]],
    *,
    classes: int = 4,
    figures: dict[str, Any] | None = None,
    tables: dict[str, Any] | None = None,
    backbones: Sequence[str] = ("small", "large"),
) -> Study:
    """Return a study on one dataset, ``digits``; each sweep overrides a default grid of one cell."""
    content: dict[str, Any] = yaml.safe_load(STUDY)
    backbone, sweep = content["backbones"]["small"], content["sweeps"]["one"]
    content["datasets"]["digits"] |= {"classes": classes, "train_size": 1000}
    content["backbones"] = {name: backbone | {"title": f"ViT {name}"} for name in backbones}
    content["sweeps"] = {
        name: sweep | {"backbone": backbones[0]} | changes for name, changes in sweeps.items()
    }
    content["roles"]["backbones"] = dict(zip(("weak", "strong"), backbones, strict=False))
    return study_of(content | {"figures": figures or {}, "tables": tables or {}})


def trial_rows(study: Study, cell: Cell, outcome: Outcome) -> list[dict[str, Any]]:
    """Return the rows of a cell's trials.parquet, with known outcomes.

    The best learning rate is chosen as in training: first seed, selection accuracy, smallest rate on
    ties. Defaults: macro accuracy 0.5, the same accuracy for every class, sigma 1.
    """
    sweep = study.sweeps[study.sweep_of(cell)]
    dataset = study.datasets[sweep.dataset]
    size, train_size = study.batch_size(cell), study.train_size(sweep.dataset)
    steps = optimizer_steps(train_size, size, cell.epochs, study.privacy.step_rounding)
    automatic = isinstance(cell.clipping_bound, str)
    of_cell = {
        **{name: getattr(sweep, name) for name in ("dataset", "backbone", "method", "optimizer")},
        "epsilon": cell.epsilon, "delta": study.privacy.delta, "certified_epsilon": cell.epsilon,
        "epochs": cell.epochs, "steps": steps, "train_size": train_size, "batch_size": size,
        "full_batch": cell.batch_size == "full", "sampling_rate": size / dataset.train_size,
        "passes": steps * size / dataset.train_size, "noise_multiplier": 1.0,
        "clipping": cell.clipping_bound if automatic else "flat",
        "clipping_bound": np.nan if automatic else cell.clipping_bound,
        "loss": 1.0, "diverged": False, "nonfinite_examples": 0, "mean_gradient_norm": 1.0,
        "clipped_fraction": 0.5, "physical_batch": 256, "trainable_parameters": 10,
        "head_parameters": 5, "wall_seconds": 1.0, "examples_per_second": 100.0,
        "device": "cpu", "precision": "float32", "versions": "{}",
        "data_checksum": CHECKSUM, "backbone_checksum": CHECKSUM,
        "classes_checksum": fingerprint(class_names(dataset.classes)),
        "trainer_version": TRAINER_VERSION, "trainer_sources": "",
    }  # fmt: skip
    results = {(rate, 1): outcome(cell, rate, 1) for rate in sweep.learning_rates}
    scores = {
        rate: each.get("selection_accuracy", each.get("macro_accuracy", 0.5))
        for (rate, _), each in results.items()
    }
    best = max(scores, key=lambda rate: (not np.isnan(scores[rate]), scores[rate], -rate))
    results |= {(best, seed): outcome(cell, best, seed) for seed in range(2, sweep.seeds + 1)}
    rows = []
    for (rate, seed), result in results.items():
        accuracy = result.get("macro_accuracy", 0.5)
        of_trial = {
            **{"learning_rate": rate, "seed": seed, "best": rate == best},
            "trial_key": f"{cell.problem}/{cell.name}/{rate}/{seed}",
            "per_class_accuracy": [accuracy] * dataset.classes,
            **dict.fromkeys(ACCURACIES, accuracy),
        }
        rows.append(of_cell | of_trial | result)
    return rows


def write_cells(
    study: Study,
    paths: Paths,
    outcome: Outcome,
    cells: Iterable[Cell] | None = None,
    steps_too: bool = False,
) -> None:
    """Write trials.parquet of cells (default: all) with the rows of `trial_rows`.

    With ``steps_too``, also write steps.parquet: the mean gradient norm of every step is 1, or from the
    outcome's ``step_norms``.
    """
    for cell in study.all_cells() if cells is None else cells:
        rows = trial_rows(study, cell, outcome)
        norms = [row.pop("step_norms", 1.0) for row in rows]
        paths.cell(cell).mkdir(parents=True, exist_ok=True)
        # pandas would take ten times as long for a small table.
        write_table(pa.Table.from_pylist(rows), paths.cell_trials(study, cell))
        if not steps_too:
            continue
        steps = [
            pd.DataFrame(
                {"step": np.arange(1, row["steps"] + 1), "mean_gradient_norm": each}
            ).assign(
                **{name: row[name] for name in ("trial_key", "learning_rate", "seed")},
                sampled_examples=row["batch_size"],
                clipped_fraction=0.5,
            )
            for row, each in zip(rows, norms, strict=True)
        ]
        pd.concat(steps).to_parquet(paths.cell_steps(study, cell), index=False)


def write_gradient_norms(
    study: Study,
    paths: Paths,
    cell: Cell,
    learning_rate: float,
    epochs: Sequence[tuple[Any, Any]],
) -> None:
    """Write a file of gradient norms, with ``cell`` as the best of the competing ones.

    ``epochs`` has one (labels, norms) for every epoch.
    """
    file = paths.gradient_norms(study, cell.problem, cell.epsilon, cell.epochs, cell.clipping_bound)
    file.parent.mkdir(parents=True, exist_ok=True)
    frames = [
        pd.DataFrame({"label": np.asarray(labels, int), "norm": np.asarray(norms, float)}).assign(
            epoch=epoch
        )
        for epoch, (labels, norms) in enumerate(epochs, start=1)
    ]
    every = pd.concat(frames)
    every.assign(
        head_norm=every["norm"] / 2,
        batch_size=study.batch_size(cell),
        learning_rate=learning_rate,
        seed=1,
        trial_key=f"{cell.problem}/{cell.name}/{learning_rate}/1",
    ).to_parquet(file, index=False)


def write_overlaps(
    study: Study,
    paths: Paths,
    cell: Cell,
    noise_multiplier: float,
    gradients: Sequence[Sequence[Any]],
    seeds: int = 1,
) -> None:
    """Write the overlaps of gradients of a cell's best trials.

    ``gradients`` has for every epoch from 0 the gradients of each draw, shape (examples, d). Each
    seed has an equal share of the draws.
    """
    file = paths.theory(study, cell)
    file.parent.mkdir(parents=True, exist_ok=True)
    parts = []
    for epoch, draws in enumerate(gradients):
        for number, rows in enumerate(np.asarray(each, dtype=float) for each in draws):
            seed, draw = divmod(number, max(1, len(draws) // seeds))
            sums = ClippedSums.of(rows)
            columns = {"norm": sums.norms, "dot_smaller": sums.smaller, "dot_larger": sums.larger}
            of_draw = pd.DataFrame(columns | {"dot_larger_units": sums.larger_units})
            constant = {"seed": seed + 1, "epoch": epoch, "draw": draw + 1, "examples": len(rows)}
            parts.append(of_draw.assign(**constant, trainable_parameters=rows.shape[1]))
    pd.concat(parts).assign(
        nonfinite_examples=0,
        batch_size=study.batch_size(cell),
        noise_multiplier=noise_multiplier,
        learning_rate=0.01,
        trial_key=f"{cell.problem}/{cell.name}/{study.sweeps[study.sweep_of(cell)].learning_rates[0]}/1",
    ).to_parquet(file, index=False)


def class_names(count: int) -> list[str]:
    """Return the names zero, one, ..."""
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    return [words[i] if i < len(words) else f"class {i}" for i in range(count)]


def write_dataset(paths: Paths, name: str, train_counts: Sequence[int], **changes: Any) -> Path:
    """Write the metadata of a prepared dataset with classes named zero, one, ..."""
    classes = class_names(len(train_counts))
    file = paths.dataset(name) / "metadata.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    metadata = {
        "name": name, "title": "Digits", "kind": "image", "source": "sklearn-digits", "revision": None,
        "classes": classes, "train_size": sum(train_counts), "train_counts": list(train_counts),
        "test_size": 200, "test_counts": [200 // len(classes)] * len(classes), "shape": [8, 8, 1],
        "checksum": CHECKSUM,
    }  # fmt: skip
    write_checked_json(file, metadata | changes)
    return file
