"""Describe the study and its trials in words and numbers."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

import pandas as pd

from dpsweep.base.units import count, duration
from dpsweep.figures.tables.text import TextTable
from dpsweep.report.trials import newest_results
from dpsweep.report.wording import span, values
from dpsweep.study import Study
from dpsweep.study.config import (
    FileWeights,
    HubWeights,
    LoRA,
    Pretraining,
    RandomWeights,
    Weights,
)
from dpsweep.study.paths import Paths

_SWEEP_COLUMNS = [
    "Sweep", "Dataset", "Backbone", "Method", "Optimizer", "ε", "Epochs", "B", "C",
    "Learning rate", "Seeds", "Cells", "Trials",
]  # fmt: skip


@dataclass(frozen=True)
class Summary:
    """The head of the report."""

    sentence: str
    numbers: list[tuple[str, str]]
    newest_results: datetime | None
    inputs: dict[str, TextTable]
    """datasets, backbones, methods and sweeps, by their headings"""
    software: TextTable
    hardware: TextTable


def summarise(study: Study, paths: Paths, trials: pd.DataFrame) -> Summary:
    """Describe the study and the trials that exist of it."""
    sweeps = study.sweeps.values()
    used = {
        "dataset": study.swept_datasets,
        "backbone": sorted({sweep.backbone for sweep in sweeps}, key=list(study.backbones).index),
        "method": sorted({sweep.method for sweep in sweeps}, key=list(study.methods).index),
    }
    # Sweeps may share a trial, which was trained once.
    once = trials.drop_duplicates("trial_key")
    # Which of a machine's GPUs it was matters to a trial, not here.
    once = once.assign(device=once["device"].str.replace(r" \(GPU .*\)$", "", regex=True))
    planned = len(study.all_cells())
    found = len(trials[["problem", "cell"]].drop_duplicates())
    hours = duration(float(once["wall_seconds"].sum()))
    seeds = sorted({int(seed) for seed in trials["seed"]})
    sentence = (
        f"{count(len(study.sweeps), 'sweep')} over {count(len(used['dataset']), 'dataset')}, "
        f"{count(len(used['backbone']), 'backbone')} and {count(len(used['method']), 'method')}: "
    )
    sentence += (
        f"{count(len(once), 'trial')} in {found:,} of {count(planned, 'planned cell')}, "
        f"{hours} of training on {_join(once['device'].unique())}."
        if len(once)
        else f"none of the {count(planned, 'planned cell')} has been trained yet."
    )
    return Summary(
        sentence=sentence,
        numbers=[
            ("sweeps", f"{len(study.sweeps):,}"),
            ("cells", f"{found:,} of {planned:,}"),
            ("trials", f"{len(once):,}"),
            ("training", hours),
            ("seeds", _ranges(seeds) or "–"),
        ],
        newest_results=newest_results(study, paths),
        inputs={
            "Datasets": _datasets(study, used["dataset"]),
            "Backbones": _backbones(study, used["backbone"]),
            "Methods": TextTable(
                ["Method", "Name", "Trains"],
                [
                    [study.methods[name].title, name, _method(study, name)]
                    for name in used["method"]
                ],
                "lll",
            ),
            "Sweeps": TextTable(
                _SWEEP_COLUMNS,
                [_sweep(study, name, trials) for name in study.sweeps],
                "l" * 10 + "rrr",
            ),
        },
        software=_software(once),
        hardware=_hardware(once),
    )


def _hardware(once: pd.DataFrame) -> TextTable:
    return TextTable(
        ["Device", "Precision", "Trials", "Training"],
        [
            [str(device), str(precision), f"{len(rows):,}", duration(rows["wall_seconds"].sum())]
            for (device, precision), rows in once.groupby(["device", "precision"])
        ],
        "llrr",
    )


def _datasets(study: Study, names: list[str]) -> TextTable:
    return TextTable(
        ["Dataset", "Name", "Kind", "Classes", "Training examples N", "Test examples", "Notes"],
        [
            [
                study.datasets[name].title,
                name,
                study.datasets[name].kind,
                f"{study.datasets[name].classes:,}",
                f"{study.train_size(name):,}"
                + (f" of {study.datasets[name].train_size:,}" if study.holdout_size(name) else ""),
                f"{study.datasets[name].test_size:,}",
                study.datasets[name].description,
            ]
            for name in names
        ],
        "lllrrrl",
    )


def _backbones(study: Study, names: list[str]) -> TextTable:
    return TextTable(
        ["Backbone", "Name", "Architecture", "Weights"],
        [
            [
                study.backbones[name].title,
                name,
                f"{study.backbones[name].library} {study.backbones[name].architecture}",
                _weights(study, study.backbones[name].weights),
            ]
            for name in names
        ],
        "llll",
    )


def _join(names: Iterable[str]) -> str:
    return " and ".join(sorted(str(name) for name in names))


def _ranges(seeds: list[int]) -> str:
    if len(seeds) > 1 and seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(str(seed) for seed in seeds)


def _weights(study: Study, weights: Weights) -> str:
    match weights:
        case RandomWeights():
            return "random, drawn from each trial's seed"
        case Pretraining():
            share = "" if weights.train_share == 1 else f"{100 * weights.train_share:g} % of "
            title = study.datasets[weights.dataset].title
            return f"pretrained on {share}{title}, {count(weights.epochs, 'epoch')}"
        case HubWeights():
            return f"{weights.id}, revision {weights.revision or 'not pinned'}"
        case FileWeights():
            return weights.path


def _method(study: Study, name: str) -> str:
    method = study.methods[name]
    words = {
        "film": "scale and bias of every normalisation layer, and the head",
        "head": "the head",
        "all": "every parameter",
        "scratch": "every parameter, from random weights",
    }
    if isinstance(method, LoRA):
        return f"adapters of rank {method.rank} on {', '.join(method.target_modules)}, and the head"
    return words[method.kind]


def _sweep(study: Study, name: str, trials: pd.DataFrame) -> list[str]:
    sweep, cells = study.sweeps[name], study.sweep_cells(name)
    trained = trials[
        (trials["problem"] == sweep.problem.name)
        & trials["cell"].isin([cell.name for cell in cells])
    ]
    return [
        name,
        study.datasets[sweep.dataset].title,
        study.backbones[sweep.backbone].title,
        study.methods[sweep.method].title,
        sweep.problem.optimizer_title(sweep.epsilon),
        values(sweep.epsilon),
        values(sweep.epochs),
        span(sweep.batch_size),
        span(sweep.clipping_bounds),
        span(sweep.learning_rates),
        str(sweep.seeds),
        f"{trained['cell'].nunique():,} of {len(cells):,}",
        f"{len(trained):,}",
    ]


def _software(trials: pd.DataFrame) -> TextTable:
    packages: dict[str, set[str]] = {}
    for recorded in trials["versions"].unique():
        for package, version in json.loads(recorded).items():
            packages.setdefault(package, set()).add(str(version))
    return TextTable(
        ["Package", "Version in training"],
        [[package, ", ".join(sorted(packages[package]))] for package in sorted(packages)],
        "ll",
    )
