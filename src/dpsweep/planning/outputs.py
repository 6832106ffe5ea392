"""All outputs of a study: their files, and the files that they are made from.

This is the workflow as data: the rules get their inputs from it, and `plan` and `status` the missing outputs.
Outdated files have other digits in their names than the study has now.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from dpsweep.base.errors import DpsweepError
from dpsweep.study import Study, fingerprints
from dpsweep.study.cells import BatchSize, Cell, FeatureSource
from dpsweep.study.clipping import ClippingBound
from dpsweep.study.grid import Selection
from dpsweep.study.messages import pick, unknown
from dpsweep.study.paths import Paths, settings_of
from dpsweep.study.targets import Target

Key = TypeVar("Key")
Stage = Literal["features", "train", "gradient_norms", "theory", "audit"]
"""Stages with jobs that use a GPU if there is one."""


@dataclass(frozen=True)
class Output:
    """The files that one job makes."""

    name: str
    """stage and name, for example ``cells/<problem>/<cell>`` or ``figures/<figure>``"""
    files: tuple[Path, ...]
    inputs: tuple[Path, ...]
    """files of other outputs"""
    outdated: Callable[[], bool] = field(default=lambda: False, kw_only=True, compare=False)
    """returns whether the files were made for other settings than those of the study now"""

    def missing(self) -> list[Path]:
        """Return its files that do not exist."""
        return [file for file in self.files if not file.exists()]


@dataclass(frozen=True)
class GpuOutput(Output):
    """The files of a job that uses a GPU if there is one."""

    stage: Stage
    cell: Cell
    """the cell that the job trains, measures or computes features for, or one of them"""


class NormsKey(NamedTuple):
    """The key of a file of gradient norms, which are measured once for all batch sizes."""

    problem: str
    epsilon: float
    epochs: int
    clipping_bound: ClippingBound

    @classmethod
    def of(cls, cells: Iterable[Cell]) -> "list[NormsKey]":
        """Return the keys of the gradient norms that some cells compete for, each once."""
        keys = (cls(each.problem, each.epsilon, each.epochs, each.clipping_bound) for each in cells)
        return list(dict.fromkeys(keys))


def prepared_files(folder: Path) -> tuple[Path, ...]:
    """Return the files of a prepared dataset, or of features."""
    arrays = (f"{split}_{what}.npy" for split in ("train", "test") for what in ("inputs", "labels"))
    return tuple(folder / file for file in ("metadata.json", *arrays))


class Outputs:
    """The outputs of a study.

    Args:
        study: the study.
        paths: its files.
    """

    def __init__(self, study: Study, paths: Paths) -> None:
        self._study, self._paths = study, paths
        # Cached, because many cells share these.
        self.trained_on = cache(self._trained_on)
        self._noise_file = cache(partial(paths.noise, study))
        self._norms_by_name = cache(self.norms_by_name)

    def every(self) -> Iterator[Output]:
        """Yield all outputs, each once and after its inputs."""
        study = self._study
        yield from self._prepared()
        yield from map(self.features, study.feature_sources())
        noise = (
            (study.problems[each.problem].dataset, each.epsilon, each.epochs, each.batch_size)
            for each in study.all_cells()
        )
        for setting in dict.fromkeys(noise):
            yield self.noise(*setting)
        yield from map(self.cell, study.all_cells())
        yield from map(self.gradient_norms, self.drawn_norms())
        yield from map(self.theory, self.drawn_theory())
        yield from map(self.problem, study.problems)
        yield from map(self.figure, study.figures)
        yield from map(self.table, study.tables)
        if study.audit is not None:
            yield from map(self.audited, study.audit_cells())
            yield self.audit()
        yield self.explore()
        yield self.report()

    def norms_by_name(self, problem: str) -> dict[str, NormsKey]:
        """Return the keys of all gradient norms of a problem, drawn or not, by name."""
        keys = NormsKey.of(self._study.problem_cells(problem))
        return {settings_of(self._paths.gradient_norms(self._study, *key)): key for key in keys}

    def drawn_norms(self, *targets: Target) -> list[NormsKey]:
        """Return the gradient norms that some figures and tables draw, or all if none is given."""
        selections = (each for target in self._targets(targets) for each in target.gradient_norms())
        return NormsKey.of(_cells(selections))

    def drawn_theory(self, *targets: Target) -> list[Cell]:
        """Return the cells whose gradients some figures and tables draw, or all if none is given."""
        return _cells(each for target in self._targets(targets) for each in target.overlaps())

    def drawn_cells(self, *targets: Target) -> list[Cell]:
        """Return the cells whose trials some figures and tables draw, or all if none is given."""
        return _cells(each for target in self._targets(targets) for each in target.selections())

    def _targets(self, some: Sequence[Target]) -> Sequence[Target]:
        return some or [*self._study.figures.values(), *self._study.tables.values()]

    # -- for the rules of the workflow ---------------------------------------------------------------

    def cell_of(self, wildcards: Mapping[str, str]) -> Output:
        """Return the cell of the wildcards ``problem``, ``cell`` and ``settings``.

        Raises:
            DpsweepError: the study has no such cell, or has it with other settings.
        """
        return self._asked(self.cell, self._cell_of(wildcards), wildcards)

    def theory_of(self, wildcards: Mapping[str, str]) -> Output:
        """Return the overlaps of the same wildcards."""
        return self._asked(self.theory, self._cell_of(wildcards), wildcards)

    def gradient_norms_of(self, wildcards: Mapping[str, str]) -> Output:
        """Return the gradient norms of the wildcards of a rule."""
        name = "eps{epsilon}_epochs{epochs}_C{clipping_bound}".format_map(wildcards)
        key = self._norms_by_name(wildcards["problem"]).get(name)
        return self._asked(self.gradient_norms, key, wildcards)

    def tables_with(self, suffix: str) -> str:
        """Return a regular expression for the tables whose last file has a suffix."""
        tables = self._study.tables.items()
        names = [name for name, table in tables if table.table_files[-1] == suffix]
        return "|".join(map(re.escape, names)) or "(?!)"

    def files(self) -> list[Path]:
        """Return every file of every output, each after its inputs.

        The target ``all`` names them all, because Snakemake does not make a missing input of a newer target.
        """
        return [file for output in self.every() for file in output.files]

    def trained(self, cells: Iterable[Cell]) -> list[Path]:
        """Return the files with the trials of cells, and with the measurements that figures draw."""
        files = [self._paths.cell_trials(self._study, cell) for cell in cells]
        files += [self._paths.gradient_norms(self._study, *key) for key in self.drawn_norms()]
        return files + [self._paths.theory(self._study, cell) for cell in self.drawn_theory()]

    def _cell_of(self, wildcards: Mapping[str, str]) -> Cell | None:
        cell = Cell.parse(wildcards["problem"], wildcards["cell"])
        return cell if self._study.has(cell) else None

    @staticmethod
    def _asked(
        output_of: Callable[[Key], Output], key: Key | None, wildcards: Mapping[str, str]
    ) -> Output:
        if key is None:
            raise DpsweepError(f"the study has no {', '.join(wildcards.values())}")
        output = output_of(key)
        if not output.files[0].stem.endswith(wildcards["settings"]):
            raise DpsweepError(
                f"the study has other settings now, and names this file {output.files[0]}; after an edit "
                "of a study that runs, run the same command again"
            )
        return output

    # -- one output each ---------------------------------------------------------------------

    def tokenizer(self, backbone: str) -> Output:
        """Return the tokenizer of a backbone that reads text."""
        file = self._paths.tokenizer(backbone)
        return Output(
            f"tokenizers/{backbone}", (file,), (), outdated=self._unprepared("tokenizer", backbone)
        )

    def dataset(self, name: str) -> Output:
        """Return a prepared dataset."""
        tokenizer = self._study.datasets[name].tokenizer
        return Output(
            f"data/{name}",
            prepared_files(self._paths.dataset(name)),
            () if tokenizer is None else (self._paths.tokenizer(tokenizer),),
            outdated=self._unprepared("dataset", name),
        )

    def backbone(self, name: str) -> Output:
        """Return a prepared backbone."""
        section, folder = self._study.backbones[name], self._paths.backbone(name)
        inputs = []
        if section.reads_with is not None:
            inputs.append(self._paths.tokenizer(name))
        if public := section.made_from.get("weights"):
            inputs.append(self._metadata(public))
        return Output(
            f"backbones/{name}",
            (folder / "metadata.json", folder / "model.safetensors"),
            tuple(inputs),
            outdated=self._unprepared("backbone", name),
        )

    def features(self, source: FeatureSource) -> Output:
        """Return the cached features of a dataset."""
        reads = self._study.feature_sources()[source]
        files = prepared_files(self._paths.features(*source))
        settings = self._study.backbones[source.backbone].features
        return GpuOutput(
            f"features/{'/'.join(source)}",
            files,
            (
                self._metadata(source.dataset),
                self._paths.backbone(source.backbone) / "metadata.json",
            ),
            "features",
            self._study.problem_cells(reads)[0],
            outdated=self._measured(files, lambda: fingerprints.section_fingerprint(settings)),
        )

    def noise(self, dataset: str, epsilon: float, epochs: int, batch_size: BatchSize) -> Output:
        """Return the noise calibration of one (dataset, epsilon, epochs, B).

        Args:
            dataset: its name in the study.
            epsilon: the target.
            epochs: E.
            batch_size: B, or full.
        """
        file = self._paths.noise(self._study, dataset, epsilon, epochs, batch_size)
        return Output(f"noise/{dataset}/{file.stem}", (file,), ())

    def cell(self, cell: Cell) -> Output:
        """Return the trials of a cell."""
        problem = self._study.problems[cell.problem]
        noise = self._noise_file(problem.dataset, cell.epsilon, cell.epochs, cell.batch_size)
        return GpuOutput(
            f"cells/{cell.problem}/{cell.name}",
            (self._paths.cell_trials(self._study, cell), self._paths.cell_steps(self._study, cell)),
            (*self.trained_on(cell.problem), noise),
            "train",
            cell,
        )

    def gradient_norms(self, key: NormsKey) -> Output:
        """Return the gradient norms of one (problem, epsilon, epochs, C)."""
        file = self._paths.gradient_norms(self._study, *key)
        cells = self._study.competing_cells(*key)
        return GpuOutput(
            f"gradnorms/{key.problem}/{file.stem}",
            (file,),
            tuple(self._paths.cell_trials(self._study, cell) for cell in cells),
            "gradient_norms",
            cells[0],
        )

    def theory(self, cell: Cell) -> Output:
        """Return the overlaps of gradients of a cell's best trials."""
        file = self._paths.theory(self._study, cell)
        return GpuOutput(
            f"theory/{cell.problem}/{file.stem}",
            (file,),
            (self._paths.cell_trials(self._study, cell),),
            "theory",
            cell,
        )

    def named(self, name: str) -> list[Output]:
        """Return the outputs of a figure, table, problem or sweep; none for other names."""
        study = self._study
        if name in study.figures:
            return [self.figure(name)]
        if name in study.tables:
            return [self.table(name)]
        if name in study.problems:
            return [self.problem(name)]
        return list(map(self.cell, study.sweep_cells(name))) if name in study.sweeps else []

    def asked(self, target: str) -> list[Output]:
        """Return the outputs of a target.

        Args:
            target: ``all``, a figure, table, problem or sweep, a cell (``problem/cell``, or its folder), or
                a file.

        Raises:
            DpsweepError: there is no such target, or it is not drawn; the message says why.
        """
        study, path = self._study, Path(target)
        if target == "all":
            return list(self.every())
        if named := self.named(target):
            return named
        cells = self._paths.results / "cells"
        problem, *names = (
            path.relative_to(cells) if path.is_relative_to(cells) else path
        ).parts or [""]
        if names and problem in study.problems:
            return [self.cell(pick_cell(study, problem, names[0]))]
        if found := [each for each in self.every() if path in each.files]:
            return found
        if target in study.targets.undrawn:
            raise DpsweepError(f"target: {target} is not drawn: {study.targets.undrawn[target]}")
        known = dict.fromkeys(
            ["all", *study.figures, *study.tables, *study.problems, *study.sweeps]
        )
        raise DpsweepError(f"target: {unknown(target, known)}, or a file below {study.results}/")

    def problem(self, name: str) -> Output:
        """Return the table of a problem's trials."""
        cells = self._study.problem_cells(name)
        inputs = tuple(self._paths.cell_trials(self._study, cell) for cell in cells)
        settings = partial(fingerprints.problem_fingerprint, self._study, name)
        return self._drawn(f"problems/{name}", [self._paths.problem(name)], inputs, settings)

    def figure(self, name: str) -> Output:
        """Return a figure."""
        files = [self._paths.figure(name, suffix) for suffix in ("pdf", "png", "csv")]
        return self._target(f"figures/{name}", files, self._study.figures[name])

    def table(self, name: str) -> Output:
        """Return a table."""
        target = self._study.tables[name]
        files = [self._paths.table(name, suffix) for suffix in target.table_files]
        return self._target(f"tables/{name}", files, target)

    def audited(self, cell: Cell) -> Output:
        """Return the audit of one setting."""
        files = (self._paths.audited(cell),)
        return GpuOutput(
            *(f"audit/{cell.name}", files, self.trained_on(cell.problem), "audit", cell),
            outdated=self._measured(files, partial(fingerprints.audit_fingerprint, self._study)),
        )

    def audit(self) -> Output:
        """Return the audit of all settings."""
        files = [self._paths.audit(suffix) for suffix in ("csv", "pdf", "png", "tex", "md")]
        inputs = map(self._paths.audited, self._study.audit_cells())
        return self._drawn("audit/audit", files, inputs, self._page)

    def explore(self) -> Output:
        """Return the interactive page with all cells."""
        inputs = map(self._paths.problem, self._study.problems)
        return self._drawn("explore", [self._paths.explore], inputs, self._page)

    def report(self) -> Output:
        """Return the report, made from all that it shows."""
        study, paths = self._study, self._paths
        figures = (
            paths.figure(each, suffix) for each in study.figures for suffix in ("png", "csv")
        )
        tables = (
            paths.table(name, suffix)
            for name, table in study.tables.items()
            for suffix in table.table_files
            if suffix.endswith("csv")
        )
        audit = (paths.audit(suffix) for suffix in ("png", "csv") if study.audit)
        inputs = (*figures, *tables, *map(paths.problem, study.problems), *audit, paths.explore)
        return self._drawn("report", [paths.report], inputs, self._page)

    def drawn_from(self, target: Target) -> tuple[Path, ...]:
        """Return the files that a figure or table reads: of exactly the cells that it draws."""
        paths = self._paths
        files: list[Path] = []
        for cell in self.drawn_cells(target):
            files.append(paths.cell_trials(self._study, cell))
            if target.reads_steps:
                files.append(paths.cell_steps(self._study, cell))
        files += (paths.gradient_norms(self._study, *key) for key in self.drawn_norms(target))
        files += (paths.theory(self._study, cell) for cell in self.drawn_theory(target))
        described = target.described_datasets(self._study.swept_datasets)
        files += map(self._metadata, described)
        return tuple(dict.fromkeys(files))

    def _prepared(self) -> Iterator[Output]:
        """Yield the tokenizers, datasets and backbones that the sweeps use, each after its inputs."""
        study = self._study
        names = study.swept_backbones
        public = (study.backbones[name].made_from.get("weights") for name in names)
        datasets = [*study.swept_datasets, *filter(None, public)]
        tokenizers = [
            *(name for name in names if study.backbones[name].reads_with is not None),
            *(study.datasets[name].tokenizer for name in datasets),
        ]
        yield from map(self.tokenizer, filter(None, dict.fromkeys(tokenizers)))
        yield from map(self.dataset, dict.fromkeys(datasets))
        yield from map(self.backbone, names)

    # -- settings that outputs were made for ---------------------------------------------------

    @cached_property
    def _page(self) -> Callable[[], str]:
        return cache(partial(fingerprints.report_fingerprint, self._study))

    def _target(self, name: str, files: Iterable[Path], target: Target) -> Output:
        settings = partial(fingerprints.target_fingerprint, self._study, target)
        return self._drawn(name, files, self.drawn_from(target), settings)

    @staticmethod
    def _drawn(
        name: str, files: Iterable[Path], inputs: Iterable[Path], settings: Callable[[], str]
    ) -> Output:
        """Return an output that is made in seconds, and so again if nothing says what it was made for."""
        first, *_ = files = tuple(files)
        outdated = lambda: not fingerprints.has_settings(first, settings())  # noqa: E731
        return Output(name, files, tuple(inputs), outdated=outdated)

    @staticmethod
    def _measured(files: Sequence[Path], settings: Callable[[], str]) -> Callable[[], bool]:
        return lambda: fingerprints.has_settings(files[0], settings()) is False

    def _unprepared(self, kind: fingerprints.Kind, name: str) -> Callable[[], bool]:
        return lambda: not fingerprints.is_prepared(self._study, self._paths, kind, name)

    # -- inputs ------------------------------------------------------------------------------

    def _metadata(self, dataset: str) -> Path:
        return self._paths.dataset(dataset) / "metadata.json"

    def _trained_on(self, problem: str) -> tuple[Path, ...]:
        """Return the files that all trials of a problem read, without the noise."""
        parts = self._study.problems[problem]
        folders = [self._paths.dataset(parts.dataset), self._paths.backbone(parts.backbone)]
        if self._study.features(problem) is not None:
            folders.append(self._paths.features(parts.dataset, parts.backbone))
        return tuple(folder / "metadata.json" for folder in folders)


def _cells(selections: Iterable[Selection]) -> list[Cell]:
    """Return the cells of some selections, each once."""
    return list(dict.fromkeys(cell for each in selections for cell in each.cells()))


def pick_cell(study: Study, problem: str, name: str) -> Cell:
    """Return a cell of a problem; the error about an unknown name lists the known ones."""
    pick("problem", problem, study.problems)
    return pick("cell", name, {each.name: each for each in study.problem_cells(problem)})


FOLDERS = ("cells", "gradnorms", "theory", "noise")
"""Folders of files whose names end with the digits of their settings."""


def former_files(paths: Paths, studies: Iterable[Study]) -> list[Path]:
    """Return the files in a results folder that no study would make.

    They do not include trials in the store, which are found by their keys.

    Args:
        paths: the paths of the folder.
        studies: all studies with results there.
    """
    wanted = {file for study in studies for file in _files_of_study(study, paths)}
    found = (
        file
        for folder in FOLDERS
        for file in sorted((paths.results / folder).rglob("*"))
        if file.is_file()
    )
    return [file for file in found if file not in wanted]


def remove(files: Iterable[Path]) -> None:
    """Remove files, and the folders that become empty."""
    for file in files:
        file.unlink(missing_ok=True)
        for folder in file.parents[:2]:
            if any(folder.iterdir()):
                break
            folder.rmdir()


def _files_of_study(study: Study, paths: Paths) -> Iterator[Path]:
    cells = study.all_cells()
    for cell in cells:
        yield paths.cell_trials(study, cell)
        yield paths.cell_steps(study, cell)
        yield paths.theory(study, cell)
        dataset = study.problems[cell.problem].dataset
        yield paths.noise(study, dataset, cell.epsilon, cell.epochs, cell.batch_size)
    for key in NormsKey.of(cells):
        yield paths.gradient_norms(study, *key)
