"""Outdated files: results with other digits in their names than the study has now."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from dpsweep.planning.outputs import NormsKey
from dpsweep.study import Study
from dpsweep.study.paths import Paths

FOLDERS = ("cells", "gradnorms", "theory", "noise")
"""Folders of files whose names end with the digits of their settings."""


def former_files(paths: Paths, studies: Iterable[Study]) -> list[Path]:
    """Return the files in a results folder that no study would make.

    They do not include trials in the store, which are found by their keys.

    Args:
        paths: the paths of the folder.
        studies: all studies with results there.
    """
    wanted = {file for study in studies for file in _named(study, paths)}
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


def _named(study: Study, paths: Paths) -> Iterator[Path]:
    cells = study.all_cells()
    for cell in cells:
        yield paths.cell_trials(study, cell)
        yield paths.cell_steps(study, cell)
        yield paths.theory(study, cell)
        dataset = study.problems[cell.problem].dataset
        yield paths.noise(study, dataset, cell.epsilon, cell.epochs, cell.batch_size)
    for key in NormsKey.of(cells):
        yield paths.gradient_norms(study, *key)
