"""What commands share: their options, and how they open a study."""

import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpsweep.base import gpus
from dpsweep.planning.outputs import Output
from dpsweep.planning.provenance import Making, making
from dpsweep.study import Cell, Study, load_study
from dpsweep.study.messages import pick
from dpsweep.study.paths import Paths

if TYPE_CHECKING:
    from dpsweep.planning.cluster import Site, Stage

# For the timing breakdown of a job: when it started (see `dpsweep.cli.preload`).
STARTED = time.monotonic()


def _remember(context: typer.Context, study_file: Path) -> Path:
    """Tell `main` which study a command is about."""
    if context.obj is not None:
        context.obj["study"] = study_file
    return study_file


StudyFile = Annotated[
    Path, typer.Option("--study", help="the study's YAML file", callback=_remember)
]
Partial = Annotated[
    bool,
    typer.Option(
        "--partial", help="use the results so far; write into partial/ in the results folder"
    ),
]
SiteFile = Annotated[
    Path | None,
    typer.Option(
        "--site",
        help="site file, such as profiles/slurm/site.yaml (- for stdin), for time estimates",
    ),
]


def open_study(study_file: Path, partial: bool = False) -> tuple[Study, Paths]:
    """Read a study; return it with its files."""
    study = load_study(study_file)
    return study, Paths(Path(study.results), partial)


def cells_of(study: Study, problem: str) -> list[Cell]:
    """The cells of a problem, or an error that names the problems that there are."""
    pick("problem", problem, study.problems)
    return study.problem_cells(problem)


def making_if_whole(
    paths: Paths, output: Output
) -> contextlib.AbstractContextManager[Making | None]:
    """Leave what an output was made from; a partial drawing is nothing to rely on."""
    return contextlib.nullcontext() if paths.partial else making(paths, output)


def gpu_for(
    study: Study, stage: "Stage", problem: str, epochs: int
) -> contextlib.AbstractContextManager[gpus.Gpu | None]:
    """Wait for a GPU of this machine, or for seats of one, where the workflow offers any.

    Args:
        study: the study.
        stage: what the job does.
        problem: the name of its problem.
        epochs: of the trials that it trains or measures.
    """
    from dpsweep.planning.cluster import Jobs

    return gpus.taken_gpu(Jobs(study, None, gpus.offered()).gpu_seats(stage, problem, epochs))


def read_site_file(site_file: Path | None) -> "Site | None":
    """Read the section ``slurm`` of a site file."""
    if site_file is None:
        return None
    import yaml

    from dpsweep.planning.cluster import read_site

    piped = str(site_file) == "-"
    content = yaml.safe_load(sys.stdin if piped else site_file.read_text(encoding="utf-8"))
    return read_site((content or {}).get("slurm", {}), str(site_file))
