"""Find the mistakes of a study that its file and this machine can show."""

import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpsweep.planning.plan import Plan
from dpsweep.study import Study
from dpsweep.study.cells import number
from dpsweep.study.config import FileWeights, Pretraining, TrainedTokenizer
from dpsweep.study.config.section import Section
from dpsweep.study.paths import Paths

_FEW_HELD_OUT = 10
"""Held-out examples of a class, below which choosing by their accuracy is a matter of luck."""


def used_datasets(study: Study) -> list[str]:
    """The datasets that a sweep trains on, or that a network or a tokenizer of one is made from."""
    names = dict.fromkeys(study.swept_datasets)
    for backbone in used_backbones(study):
        for part in (study.backbones[backbone].weights, study.backbones[backbone].reads_with):
            if isinstance(part, Pretraining | TrainedTokenizer):
                names[part.dataset] = None
    return list(names)


def used_backbones(study: Study) -> list[str]:
    """The backbones that a sweep trains."""
    return list(dict.fromkeys(sweep.backbone for sweep in study.sweeps.values()))


def problems(study: Study, paths: Paths) -> Iterator[str]:
    """Say what will fail, each with its key, what was found and what is allowed."""
    for key, path, is_folder in _local_files(study, paths):
        if not (path.is_dir() if is_folder else path.is_file()):
            kind = "folder" if is_folder else "file"
            state = f"no {kind}" if path.exists() else "not there"
            yield f"{key}: found {path}, which is {state}; allowed: a {kind}"
    for name in used_backbones(study):
        weights = study.backbones[name].weights
        if isinstance(weights, FileWeights) and not weights.path.endswith(".safetensors"):
            yield (
                f"backbones.{name}.weights.path: found {weights.path}; allowed: a .safetensors file "
                "(pickled checkpoints can run code when they are opened)"
            )
    results = paths.results.resolve()
    for key, path, _ in _local_files(study, paths):
        if results.is_relative_to(path.resolve()):
            yield (
                f"results: found {paths.results}, which lies in {key} ({path}), so that every result would "
                "change the data; allowed: a folder of its own"
            )
    plan = Plan(study, paths)
    needed = plan.preparation_bytes() + sum(each.bytes for each in plan.estimates().values())
    free = shutil.disk_usage(_existing(paths.results)).free
    if needed > free:
        yield (
            f"results: {needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free on the disk of "
            f"{paths.results}; allowed: a folder on a disk with more room"
        )


def notes(study: Study, paths: Paths) -> Iterator[str]:
    """Say what may not be meant so."""
    if not paths.results.resolve().is_relative_to(Path.cwd()):
        yield f"results: {paths.results} lies outside of this folder"
    cores = os.cpu_count() or 1
    if study.training.threads > cores:
        yield f"training.threads: {study.training.threads}, and this machine has {cores} cores"
    for name in study.swept_datasets:
        dataset, size = study.datasets[name], study.train_size(name)
        private = any(
            sweep.dataset == name and sweep.epsilon != [math.inf] for sweep in study.sweeps.values()
        )
        if private and study.privacy.delta >= 1 / size:
            yield (
                f"privacy.delta: {number(study.privacy.delta)} is not below 1/N of {name}, which is "
                f"{1 / size:.2g}: publishing one example whole would be as private"
            )
        held_out = study.holdout_size(name) / dataset.classes
        if study.holdout_share and held_out < _FEW_HELD_OUT:
            yield (
                f"training.holdout_share: holds {study.holdout_size(name)} examples of {name} out, "
                f"{held_out:.1f} for each of {dataset.classes} classes; what is chosen by so few is "
                "chosen by luck"
            )
        if dataset.test_size < dataset.classes:
            yield (
                f"datasets.{name}.test_size: {dataset.test_size} examples for {dataset.classes} classes; "
                "macro accuracy leaves out those without one"
            )


def drawn_texts(study: Study) -> list[str]:
    """The texts of the study that may appear in a figure."""
    sections = (study.datasets, study.backbones, study.methods)
    titles = [each.title for section in sections for each in section.values()]
    return titles + list(_texts([each.model_dump() for each in study.figures.values()]))


def _texts(content: Any) -> Iterator[str]:
    match content:
        case str():
            yield content
        case dict():
            yield from _texts(list(content.values()))
        case list() | tuple():
            for each in content:
                yield from _texts(each)


def _local_files(study: Study, paths: Paths) -> Iterator[tuple[str, Path, bool]]:
    """The key, place and kind (a folder or not) of the local files that are still to be read."""
    for name in used_datasets(study):
        if (paths.dataset(name) / "metadata.json").exists():
            continue
        yield from _named_by(f"datasets.{name}.source", study.datasets[name].source)
    for name in used_backbones(study):
        backbone = study.backbones[name]
        if not (paths.backbone(name) / "metadata.json").exists():
            yield from _named_by(f"backbones.{name}.weights", backbone.weights)
        if backbone.tokenizer is not None and not paths.tokenizer(name).exists():
            yield from _named_by(f"backbones.{name}.tokenizer", backbone.tokenizer)


def _named_by(where: str, section: Section) -> Iterator[tuple[str, Path, bool]]:
    for named, is_folder in ((section.local_folders(), True), (section.local_files(), False)):
        for key, path in named.items():
            yield f"{where}.{key}", Path(path).expanduser(), is_folder


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
