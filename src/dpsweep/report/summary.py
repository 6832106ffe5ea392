"""Summary of a study and its trials: sizes, inputs, hardware and software."""

import json

import pandas as pd

from dpsweep.base.units import count, duration
from dpsweep.report.embed import span, values
from dpsweep.study import Study
from dpsweep.study.backbones import (
    FileWeights,
    HubWeights,
    NoWeights,
    Pretraining,
    RandomWeights,
    Weights,
)
from dpsweep.study.methods import LoRA
from dpsweep.tables.text import TextTable


def each_once(trials: pd.DataFrame) -> pd.DataFrame:
    """Drop repetitions of trials that several sweeps share."""
    once = trials.drop_duplicates("trial_key")
    # The report does not distinguish the GPUs of a machine.
    return once.assign(device=once["device"].str.replace(r" \(GPU .*\)$", "", regex=True))


def sentence(study: Study, trials: pd.DataFrame) -> str:
    """Write a sentence on the size and progress of the study; test sets limit what it can tell apart."""
    sweeps = study.sweeps.values()
    counts = {
        part: count(len({getattr(sweep, part) for sweep in sweeps}), part)
        for part in ("dataset", "backbone", "method")
    }
    tested = sorted({study.datasets[name].test_size for name in study.swept_datasets})
    tested = [tested[0], tested[-1]] if len(tested) > 1 else tested
    counts["dataset"] += f" ({' to '.join(f'{size:,}' for size in tested)} test examples)"
    parts = (count(len(sweeps), "sweep"), *counts.values())
    once, planned = each_once(trials), count(len(study.all_cells()), "planned cell")
    if once.empty:
        so_far = f"none of the {planned} has been trained yet."
    else:
        cells = len(trials[["problem", "cell"]].drop_duplicates())
        devices = " and ".join(sorted(map(str, once["device"].unique())))
        so_far = (
            f"{count(len(once), 'trial')} in {cells:,} of {planned}, "
            f"{duration(once['wall_seconds'].sum())} of training on {devices}."
        )
    return "{} over {}, {} and {}: ".format(*parts) + so_far


def inputs(study: Study, trials: pd.DataFrame) -> dict[str, TextTable]:
    """Tabulate the datasets, backbones, methods and sweeps, by heading."""
    sweeps = study.sweeps.values()
    backbones = {sweep.backbone for sweep in sweeps}
    methods = {sweep.method for sweep in sweeps}
    return {
        "Datasets": TextTable.of(
            [_dataset(study, name) for name in study.swept_datasets], "lllrrrl"
        ),
        "Backbones": TextTable.of(
            [
                {
                    "Backbone": backbone.title,
                    "Name": name,
                    "Architecture": f"{backbone.library} {backbone.architecture}",
                    "Weights": _weights(study, backbone.weights),
                }
                for name, backbone in study.backbones.items()
                if name in backbones
            ],
            "llll",
        ),
        "Methods": TextTable.of(
            [
                {"Method": method.title, "Name": name, "Trains": _method(study, name)}
                for name, method in study.methods.items()
                if name in methods
            ],
            "lll",
        ),
        "Sweeps": TextTable.of(
            [_sweep(study, name, trials) for name in study.sweeps], "l" * 10 + "rrr"
        ),
    }


def _dataset(study: Study, name: str) -> dict[str, str]:
    dataset = study.datasets[name]
    of_all = f" of {dataset.protected:,}" if study.holdout_size(name) else ""
    if dataset.has_units:
        of_all += f" units with {dataset.train_size:,} rows; {dataset.protects}"
    return {
        "Dataset": dataset.title,
        "Name": name,
        "Kind": dataset.kind,
        "Classes": f"{dataset.classes:,}",
        "Training examples N": f"{study.train_size(name):,}{of_all}",
        "Test examples": f"{dataset.test_size:,}",
        "Notes": dataset.description,
    }


def _weights(study: Study, weights: Weights) -> str:
    match weights:
        case RandomWeights():
            return "random, drawn from each trial's seed"
        case NoWeights():
            return "none: it learns nothing before its head"
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


def _sweep(study: Study, name: str, trials: pd.DataFrame) -> dict[str, str]:
    sweep, cells = study.sweeps[name], study.sweep_cells(name)
    trained = trials[
        (trials["problem"] == sweep.problem.name)
        & trials["cell"].isin([cell.name for cell in cells])
    ]
    return {
        "Sweep": name,
        "Dataset": study.datasets[sweep.dataset].title,
        "Backbone": study.backbones[sweep.backbone].title,
        "Method": study.methods[sweep.method].title,
        "Optimizer": study.optimizer_title(sweep.problem.optimizer, sweep.epsilon),
        "ε": values(sweep.epsilon),
        "Epochs": values(sweep.epochs),
        "B": span(sweep.batch_size),
        "C": span(sweep.clipping_bounds),
        "Learning rate": span(sweep.learning_rates),
        "Seeds": str(sweep.seeds),
        "Cells": f"{trained['cell'].nunique():,} of {len(cells):,}",
        "Trials": f"{len(trained):,}",
    }


def hardware(trials: pd.DataFrame) -> TextTable:
    """Tabulate the devices and number formats of the trials."""
    rows = [
        {
            "Device": str(device),
            "Precision": str(precision),
            "Trials": f"{len(rows):,}",
            "Training": duration(rows["wall_seconds"].sum()),
        }
        for (device, precision), rows in each_once(trials).groupby(["device", "precision"])
    ]
    return TextTable.of(rows, "llrr")


def software(trials: pd.DataFrame) -> TextTable:
    """Tabulate the package versions that the trials record."""
    recorded = [json.loads(each) for each in trials["versions"].unique()]
    packages: dict[str, set[str]] = {}
    for package, version in (pair for versions in recorded for pair in versions.items()):
        packages.setdefault(package, set()).add(str(version))
    rows = [
        {"Package": package, "Version in training": ", ".join(sorted(versions))}
        for package, versions in sorted(packages.items())
    ]
    return TextTable.of(rows, "ll")
