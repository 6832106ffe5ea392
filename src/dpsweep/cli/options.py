"""Options that commands share, and functions that open a study."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from dpsweep.base.errors import DpsweepError
from dpsweep.base.gpus import taken_gpus
from dpsweep.study import Paths, Study, load

Found = TypeVar("Found")

# The start of the job, for its timing breakdown (see `dpsweep.cli.preload`).
STARTED = time.monotonic()


OPENED: ContextVar[Path] = ContextVar("study file", default=load.DEFAULT_STUDY)
"""The file of the command's study, for messages."""


def _here(study_file: Path) -> Path:
    """Return the study's file; without a ``config.yaml``, the only study in the current folder."""
    study_file = load.study_path(study_file)
    if study_file == load.DEFAULT_STUDY and not study_file.exists():
        study_file = load.only_study(Path())
    OPENED.set(study_file)
    return study_file


def path(text: str) -> Path:
    """Return a path of the command line (`study_path`); its name is that of the argument in the help."""
    return load.study_path(text)


StudyFile = Annotated[
    Path,
    typer.Option(
        "--study",
        envvar=load.STUDY,
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


def open_study(
    study_file: Path, partial: bool = False, figures: bool = True
) -> tuple[Study, Paths]:
    """Read a study, with or without its figures; return it with its files.

    Raises:
        DpsweepError: the study is not valid, or its key ``results`` was edited after the workflow had
            planned a job, which would write where the workflow does not look.
    """
    study = load.load_study(study_file, figures)
    if os.environ.get(load.RESULTS, study.results) != study.results:
        raise _edited()
    return study, Paths(Path(study.results), partial)


def _edited() -> DpsweepError:
    return DpsweepError(
        f"{OPENED.get()}, a file that it names, or dpsweep changed after this job was planned, so the job "
        "has done nothing. Run the same command again: it plans with the new settings",
        remake=("all",),
    )


def find_study(named: str | Path | None, figures: bool = True) -> tuple[Path, Study, Paths]:
    """Find a study, read it, and change to the folder that its paths start at.

    If the current folder has results of the study, its paths start here.

    Args:
        named: its file or name. None: the study of the environment (the workflow sets it for its jobs),
            ``config.yaml``, or the only study in the current folder.
        figures: see `load_study`.

    Returns:
        Its file, absolute if the folder is another one now, the study, and its files.

    Raises:
        DpsweepError: the study does not exist, is ambiguous, or is not valid.
    """
    named = named or os.environ.get(load.STUDY)
    file = _here(load.DEFAULT_STUDY) if named is None else load.named_study(str(named), Path())
    study, paths = open_study(file, figures=figures)
    folder = (Path.cwd() if paths.results.exists() else load.home(file)).resolve()
    if folder != Path.cwd():
        file = file.resolve()  # messages suggest commands, which the user types in another folder
        os.chdir(folder)
    OPENED.set(file)
    return file, study, paths


def check_planned(
    planned: str | None, find: Callable[[], Found], settings: Callable[[Found], str]
) -> Found:
    """Find what a job works on; refuse the job if the study was edited after the workflow had planned it.

    Such a job would spend hours on other settings, and its planned files would still be missing.

    Args:
        planned: the hash of the settings that the workflow has planned with; None: a call by hand.
        find: returns a section, cell or target of the study; raises an error if there is no such thing.
        settings: returns the hash of its settings now.

    Raises:
        DpsweepError: the settings are other ones now.
    """
    try:
        found = find()
        if planned is None or settings(found) == planned:
            return found
    except DpsweepError:
        if planned is None:
            raise
    raise _edited()


@contextlib.contextmanager
def training(gpus: int = 1) -> Iterator[None]:
    """Run the block without network access, on GPUs that no other job uses if there are any.

    SIGTERM and SIGUSR1 end the job with saved state (see `dpsweep.training.processes`).
    """
    from dpsweep.training.processes import refuse_network, watched

    refuse_network()
    with taken_gpus(gpus), watched():
        yield
