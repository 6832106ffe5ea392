"""Options that commands share, and functions that open a study."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import typer

from dpsweep.base.errors import DpsweepError
from dpsweep.base.gpus import taken_gpus
from dpsweep.study import Study, load_study
from dpsweep.study.commands import DEFAULT_STUDY, RESULTS, STUDY
from dpsweep.study.load import home, named_study, only_study, study_path
from dpsweep.study.paths import Paths

# The start of the job, for its timing breakdown (see `dpsweep.cli.preload`).
STARTED = time.monotonic()


OPENED: ContextVar[Path] = ContextVar("study file", default=DEFAULT_STUDY)
"""The file of the command's study, for messages."""


def _here(study_file: Path) -> Path:
    """Return the study's file; without a ``config.yaml``, the only study in the current folder."""
    study_file = study_path(study_file)
    if study_file == DEFAULT_STUDY and not study_file.exists():
        study_file = only_study(Path())
    OPENED.set(study_file)
    return study_file


def path(text: str) -> Path:
    """Return a path of the command line (`study_path`); its name is that of the argument in the help."""
    return study_path(text)


StudyFile = Annotated[
    Path,
    typer.Option(
        "--study",
        envvar=STUDY,
        help="the study's YAML file; without a config.yaml by default the only one here",
        callback=_here,
    ),
]
StudyName = Annotated[
    str | None,
    typer.Argument(
        metavar="STUDY",
        help="the study's file, or the name of one that comes with dpsweep; by default the only one here",
    ),
]
FoundStudy = Annotated[Path | None, typer.Option("--study", parser=path, help="the same as STUDY")]
Partial = Annotated[
    bool,
    typer.Option(
        "--partial", help="use the results so far; write into partial/ in the results folder"
    ),
]


def _finite(found: float) -> float:
    if not math.isfinite(found):
        raise typer.BadParameter(f"{found} is not a finite number.")
    return found


Teraflops = Annotated[
    float,
    typer.Option(
        "--teraflops",
        min=0.0,
        callback=_finite,
        help="estimate for GPUs of a cluster that sustain so many 10^12 operations a second; 0: no cluster",
    ),
]


Planned = Annotated[
    str | None,
    typer.Option(help="refuse to start if the hash of this output's settings is another one now"),
]

Found = TypeVar("Found")


class OpenStudy(NamedTuple):
    """A study with its files."""

    study: Study
    paths: Paths


def open_study(study_file: Path, partial: bool = False, figures: bool = True) -> OpenStudy:
    """Read a study, with or without its figures; return it with its files."""
    study = _in_planned_folder(load_study(study_file, figures))
    return OpenStudy(study, Paths(Path(study.results), partial))


def _in_planned_folder(study: Study) -> Study:
    """Return a study, unless its key ``results`` was edited after the workflow had planned a job.

    Such a job would write where the workflow does not look.
    """
    if os.environ.get(RESULTS, study.results) != study.results:
        raise _edited()
    return study


def _edited() -> DpsweepError:
    return DpsweepError(
        f"{OPENED.get()}, a file that it names, or dpsweep changed after this job was planned, so the job "
        "has done nothing. Run the same command again: it plans with the new settings",
        remake=("all",),
    )


class FoundStudyFile(NamedTuple):
    """A study, and the folder that its relative paths start at."""

    file: Path
    study: Study
    folder: Path

    def seen_from(self, folder: Path) -> Path:
        """Return the study's file as a path from a folder."""
        if folder.resolve() == Path.cwd():
            return self.file
        file, folder = self.file.resolve(), folder.resolve()
        return file.relative_to(folder) if file.is_relative_to(folder) else file


def locate_study(named: str | Path | None) -> FoundStudyFile:
    """Find a study and read it.

    If the current folder has results of the study, its paths start here.

    Args:
        named: its file or name. None: the study of the environment (the workflow sets it for its jobs),
            ``config.yaml``, or the only study in the current folder.

    Raises:
        DpsweepError: the study does not exist, is ambiguous, or is not valid.
    """
    named = named or os.environ.get(STUDY)
    file = _here(DEFAULT_STUDY) if named is None else named_study(str(named), Path())
    study = _in_planned_folder(load_study(file))
    return FoundStudyFile(file, study, Path.cwd() if Path(study.results).exists() else home(file))


def find_study(named: str | Path | None) -> tuple[Path, Study, Paths]:
    """Find a study as `locate_study` does, and change to the folder that its paths start at.

    Returns:
        Its file as a path from that folder, the study, and its files.

    Raises:
        DpsweepError: as `locate_study`.
    """
    found = locate_study(named)
    file = found.seen_from(found.folder)
    os.chdir(found.folder)
    OPENED.set(file)
    return file, found.study, Paths(Path(found.study.results))


def as_planned(
    planned: str | None, find: Callable[[], Found], settings: Callable[[Found], str]
) -> Found:
    """Return what a job is about, unless the study was edited after the workflow had planned the job.

    Such a job would spend hours on other settings, and its planned files would still be missing.

    Args:
        planned: the hash of the settings that the workflow has planned with; None: a call by hand.
        find: returns what the job is about; raises a `DpsweepError` if the study has no such thing.
        settings: returns the hash of its settings now.

    Raises:
        DpsweepError: of ``find``, or the settings are other ones now.
    """
    if planned is None:
        return find()
    with contextlib.suppress(DpsweepError):
        found = find()
        if settings(found) == planned:
            return found
    raise _edited()


@contextlib.contextmanager
def training(gpus: int = 1) -> Iterator[None]:
    """Run the block without network access, on GPUs that no other job uses if there are any.

    SIGTERM and SIGUSR1 end the job with saved state (see `dpsweep.training.job`).
    """
    from dpsweep.training.job import refuse_network, watched

    refuse_network()
    with taken_gpus(gpus), watched():
        yield
