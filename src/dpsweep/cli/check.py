"""Checks of a study before it runs: its file, local data, networks and texts."""

import math
import os
from collections.abc import Generator, Iterator
from pathlib import Path

from dpsweep.base.errors import DpsweepError
from dpsweep.base.formatting import count, texts_in
from dpsweep.data.hub import HubError, UnreachableHubError, repository_named, require_file
from dpsweep.data.prepare import inspect, warn_of_cut_texts, warn_of_untested
from dpsweep.data.prepared import DatasetError, PreparedDataset
from dpsweep.release import budget_in_words, price
from dpsweep.study import Paths, Study, StudyError
from dpsweep.study.cells import number
from dpsweep.study.datasets import HubSource
from dpsweep.study.messages import group_by_message, shorten
from dpsweep.study.networks import FileWeights, HubTokenizer, HubWeights
from dpsweep.study.section import Section

_FEW = 5  # undrawn targets; up to this number the reasons are always listed
# Held-out examples of a class; with fewer, a choice by their accuracy is mostly noise.
_FEW_HELD_OUT = 10


def check(study: Study, paths: Paths, seconds: float, every_target: bool = False) -> Iterator[str]:
    """Check a study, and yield lines about it.

    Args:
        study: the study.
        paths: its files.
        seconds: time for the first steps of networks; 0 skips networks.
        every_target: for each target that is not drawn, list what the study lacks.

    Raises:
        StudyError: at the end, listing everything that would fail.
    """
    yield from _sizes(study, every_target)
    wrong = list(_mistakes(study, paths))
    classes: dict[str, list[str]] = {}
    looked_at: list[tuple[str, str]] = []
    for name in _used_datasets(study):
        if any(each.startswith(f"datasets.{name}.") for each in wrong):
            continue  # a missing file is already listed
        try:
            found = _classes(study, paths, name)
        except DatasetError as error:
            wrong.append(str(error))
            continue
        if found is not None:
            classes[name] = found
            looked_at.append((name, f"{len(found)} classes, and sizes as the study says"))
            if study.datasets[name].has_units:
                section = study.datasets[name]
                yield f"{name}: epsilon protects {section.protects}; N = {section.protected}"
        elif isinstance(study.datasets[name].source, HubSource):
            looked_at.append((name, "looked at when fetched, before anything is trained"))
    for what, names in group_by_message(looked_at).items():
        yield f"{', '.join(names)}: {what}"
    wrong += yield from _hub(study, paths)
    if study.optimizers:
        # The import takes seconds.
        from dpsweep.training.optimizer import mistaken_optimizers

        wrong += mistaken_optimizers(study)
    if seconds:
        wrong += yield from _networks(study, seconds)
    wrong += _unwritable(study, classes)
    for note in _notes(study, paths):
        yield f"note: {note}"
    if study.release is not None and not wrong:
        yield budget_in_words(study, paths)
    if wrong:
        raise StudyError("\n".join(wrong))


def _sizes(study: Study, every_target: bool) -> Iterator[str]:
    cells = study.all_cells()
    trials = sum(study.trials_per_cell(study.sweep_of(cell)) for cell in cells)
    for name, sweep in study.sweeps.items():
        rates = len(sweep.learning_rates)
        yield (
            f"  {name}: {count(len(study.sweep_cells(name)), 'cell')}, "
            f"{count(rates, 'learning rate')}, {count(sweep.seeds, 'seed')}"
        )
    yield (
        f"{count(len(study.sweeps), 'sweep')}, {count(len(cells), 'cell')}, {count(trials, 'trial')} "
        f"({study.training.selection}), {count(len(study.figures), 'figure')}, "
        f"{count(len(study.tables), 'table')}"
    )
    yield from _undrawn(study, every_target)


def _undrawn(study: Study, every_target: bool) -> Iterator[str]:
    """Yield the targets that the study draws, the number of others, and the reason of each or of its own."""
    drawn, undrawn = [*study.figures, *study.tables], study.targets.undrawn
    if drawn or undrawn:
        yield f"drawn: {', '.join(drawn) if drawn and every_target else shorten(drawn)}"
    if len(undrawn) > _FEW and not every_target:
        yield f"not drawn: {len(undrawn)} targets that need other roles or cells; --all lists them"
        undrawn = {name: undrawn[name] for name in study.targets.own_undrawn}
    for reason, names in group_by_message(undrawn.items()).items():
        yield f"not drawn: {', '.join(names)}"
        yield from (f"  {each}" for each in dict.fromkeys(reason.split("; ")))


def _classes(study: Study, paths: Paths, dataset: str) -> list[str] | None:
    """Return the names of a dataset's classes, from its prepared files or its local source."""
    folder, section = paths.dataset(dataset), study.datasets[dataset]
    if (folder / "metadata.json").exists():
        found = PreparedDataset.open(folder).metadata
        declared = section.classes, section.train_size, section.test_size, section.train_units
        if (
            *(len(found.classes), found.train_size, found.test_size),
            found.train_units,
        ) == declared:
            warn_of_untested(dataset, found.classes, found.test_counts)
            warn_of_cut_texts(dataset, section, found)
            return list(found.classes)
    return inspect(dataset, section, study.reads_bytes(dataset))


def _networks(study: Study, seconds: float) -> Generator[str, None, list[str]]:
    # The import takes seconds.
    from dpsweep.training.dry_run import dry_run

    found = dry_run(study, seconds)
    yield (
        f"networks: {found.outlined} fit their data and methods; a first step of {found.tried} was tried, "
        "with random weights"
    )
    yield from (f"note: {each}" for each in found.notes)
    if found.untried:
        yield (
            f"note: no time was left for a first step of {shorten(found.untried)}; give it more: "
            "--seconds 300"
        )
    return found.mistakes


def _hub(study: Study, paths: Paths) -> Generator[str, None, list[str]]:
    """Check that the hub has the weights and tokenizers to fetch; note the ones that were not checked."""
    wrong, unknown = [], []
    for name in study.swept_backbones:
        backbone = study.backbones[name]
        prepared = {
            "weights": paths.backbone(name) / "metadata.json",
            "tokenizer": paths.tokenizer(name),
        }
        for key, source, file in (
            ("weights", backbone.weights, "model.safetensors"),
            ("tokenizer", backbone.reads_with, "tokenizer.json"),
        ):
            if not isinstance(source, HubWeights | HubTokenizer) or prepared[key].exists():
                continue
            try:
                require_file(source.id, file, source.revision)
            except UnreachableHubError as error:
                unknown.append(
                    (f"{file} of {repository_named(source.id, source.revision)}", str(error))
                )
            except HubError as error:
                wrong.append(f"backbones.{name}.{key}: {error}")
    for reason, files in group_by_message(unknown).items():
        yield f"note: not looked at: {', '.join(files)}, because {reason}"
    return wrong


def _unwritable(study: Study, classes: dict[str, list[str]]) -> list[str]:
    """Find titles, and names of drawn classes, with characters that the figures' fonts lack."""
    # The import takes a second.
    from dpsweep.figures.style import UnwritableTextError, require_fonts

    texts = _drawn_texts(study)
    for figure in study.figures.values():
        for dataset in figure.described_datasets(study.swept_datasets):
            texts += classes.get(dataset, [])
    try:
        require_fonts(texts)
    except UnwritableTextError as error:
        return [f"figures: {error}"]
    return []


# -- checks of the file and this machine -----------------------------------------------------


def _used_datasets(study: Study) -> list[str]:
    """Return the datasets that sweeps train on, or that train their networks and tokenizers."""
    made_from = (
        dataset
        for name in study.swept_backbones
        for dataset in study.backbones[name].made_from.values()
    )
    return list(dict.fromkeys([*study.swept_datasets, *made_from]))


def _mistakes(study: Study, paths: Paths) -> Iterator[str]:
    """Yield what will fail: each with its key, the value found, and the allowed values."""
    for key, path, is_folder in _local_files(study, paths):
        if not (path.is_dir() if is_folder else path.is_file()):
            kind = "folder" if is_folder else "file"
            state = f"no {kind}" if path.exists() else "not there"
            yield f"{key}: found {path}, which is {state}; allowed: a {kind}"
    for name in study.swept_backbones:
        weights = study.backbones[name].weights
        if isinstance(weights, FileWeights) and not weights.path.endswith(".safetensors"):
            yield (
                f"backbones.{name}.weights.path: found {weights.path}; allowed: a .safetensors file "
                "(pickled checkpoints can run code when they are opened)"
            )
    if study.budget is not None or (study.release is not None and paths.ledger.exists()):
        from dpsweep.release.train import check_budget  # torch takes a second

        try:
            check_budget(study, paths)
        except DpsweepError as error:
            yield str(error)
    results = paths.results.resolve()
    for key, path, _ in _local_files(study, paths):
        if results.is_relative_to(path.resolve()):
            yield (
                f"results: found {paths.results}, which lies in {key} ({path}), so that every result would "
                "change the data; allowed: a folder of its own"
            )


def _notes(study: Study, paths: Paths) -> Iterator[str]:
    """Yield settings that may be unintended."""
    if not paths.results.resolve().is_relative_to(Path.cwd()):
        yield f"results: {paths.results} lies outside of this folder"
    if spent := price(study):
        yield f"sweeps of private data run only with --unaccounted; a release needs no sweep. {spent}"
    cores = os.cpu_count() or 1
    if study.training.threads > cores:
        yield f"training.threads: {study.training.threads}, and this machine has {cores} cores"
    yield from (
        what.format(", ".join(names))
        for what, names in group_by_message(_of_datasets(study)).items()
    )
    named: dict[tuple[str, str, str], list[str]] = {}
    for name, parts in study.problems.items():
        titles = study.datasets[parts.dataset].title, study.backbones[parts.backbone].title
        named.setdefault((*titles, study.method_title(name)), []).append(name)
    for shared, alike in named.items():
        if len(alike) > 1:
            yield (
                f"title: figures and tables cannot tell {', '.join(alike)} apart: all are {', '.join(shared)}"
            )


def _of_datasets(study: Study) -> Iterator[tuple[str, str]]:
    """Yield a dataset with its number, and a note; {} in the note stands for all datasets that share it."""
    for name in study.swept_datasets:
        dataset, size = study.datasets[name], study.train_size(name)
        private = any(
            sweep.dataset == name and sweep.epsilon != [math.inf] for sweep in study.sweeps.values()
        )
        if private and study.privacy.delta >= 1 / size:
            yield (
                f"{name} ({1 / size:.2g})",
                f"privacy.delta: {number(study.privacy.delta)} is not below 1/N of {{}}: publishing one "
                "example whole would be as private",
            )
        held_out = study.holdout_size(name) / dataset.classes
        if study.holdout_share and held_out < _FEW_HELD_OUT:
            yield (
                f"{name} ({held_out:.1f})",
                f"training.holdout_share: holds fewer than {_FEW_HELD_OUT} examples of a class out of {{}}; "
                "a choice by so few is mostly luck",
            )
        if dataset.private and dataset.unit is None:
            yield (
                name,
                "unit: may one person have several rows in {}? Then name the column or pattern that says "
                "whose row it is; unit: row says no",
            )
        if dataset.train_units == dataset.train_size:
            yield (
                name,
                "unit: each unit of {} has one row, so epsilon protects a row, as unit: row says",
            )
        if dataset.test_size < dataset.classes:
            yield (
                f"{name} ({dataset.test_size} for {dataset.classes})",
                "test_size: fewer examples than classes in {}; macro accuracy leaves out those without one",
            )


def _drawn_texts(study: Study) -> list[str]:
    """Return the texts of the study that may appear in a figure."""
    sections = (study.datasets, study.backbones, study.methods)
    titles = [each.title for section in sections for each in section.values()]
    titles += [each.full_title(private=True) for each in study.every_optimizer.values()]
    return titles + list(texts_in([each.model_dump() for each in study.figures.values()]))


def _local_files(study: Study, paths: Paths) -> Iterator[tuple[str, Path, bool]]:
    """Yield the key and path of each local file still to be read, and whether it is a folder."""
    for name in _used_datasets(study):
        if (paths.dataset(name) / "metadata.json").exists():
            continue
        yield from _named_by(f"datasets.{name}.source", study.datasets[name].source)
    for name in study.swept_backbones:
        backbone = study.backbones[name]
        if not (paths.backbone(name) / "metadata.json").exists():
            yield from _named_by(f"backbones.{name}.weights", backbone.weights)
        if backbone.tokenizer is not None and not paths.tokenizer(name).exists():
            yield from _named_by(f"backbones.{name}.tokenizer", backbone.tokenizer)


def _named_by(where: str, section: Section) -> Iterator[tuple[str, Path, bool]]:
    for named, is_folder in ((section.local_folders(), True), (section.local_files(), False)):
        for key, path in named.items():
            yield f"{where}.{key}", Path(path), is_folder
