"""The command `dpsweep run`, which runs the package's workflow in the folder of a study."""

import contextlib
import logging
import os
import re
import runpy
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from dpsweep.base.errors import DpsweepError
from dpsweep.cli import progress
from dpsweep.cli.options import find_study
from dpsweep.planning.outputs import Outputs
from dpsweep.release.unaccounted import refusal, refused_problems
from dpsweep.study import Study, StudyError
from dpsweep.study.load import CALL, PROJECT, split_profiles, split_study
from dpsweep.study.paths import Paths

app = typer.Typer()
_WORKFLOW = (
    *("--snakefile", str(PROJECT / "Snakefile")),
    *("--workflow-profile", str(PROJECT / "profiles" / "default")),
)
_PREPARED = [(name,) for name in ("data", "backbones", "tokenizers", "features", "noise")]
_RULES = ("all", "report", "explore", "audit", "release", "plan", "check_cluster")


class _WithSnakemakeOptions(TyperCommand):
    """A command whose words behind the first ``--`` are options of Snakemake, passed on as they are."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words before ``--``."""
        end = args.index("--") if "--" in args else len(args)
        ctx.obj = args[end + 1 :]
        return super().parse_args(ctx, args[:end])


@app.command(cls=_WithSnakemakeOptions, context_settings={"ignore_unknown_options": True})
def run(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STUDY] [TARGETS]... [-- OPTIONS OF SNAKEMAKE]",
            help="the study; figures, tables, problems, sweeps, cells or files to make (by default all)",
        ),
    ] = None,
    unaccounted: Annotated[
        bool,
        typer.Option(
            "--unaccounted",
            help="sweep data that the study marks as private; a release needs no such option",
        ),
    ] = False,
) -> None:
    """Run a study with Snakemake, in the folder of the study.

    Options of Snakemake that help: -n (what would run), --cores 4, --profile slurm.
    """
    options: list[str] = context.obj
    if early := [word for word in words or [] if word.startswith("-")]:
        raise DpsweepError(
            f"options: found {' '.join(early)}; options of Snakemake stand behind --: "
            "dpsweep run STUDY TARGETS -- OPTIONS"
        )
    _refuse_config(options)
    profiles, others = split_profiles(options)
    os.environ[CALL] = "dpsweep run"
    named, targets = split_study(words or [])
    with contextlib.chdir("."):
        study_file, study, paths = find_study(named)
        folder = Path.cwd()
    files = [file for each in targets for file in target_files(study, paths, each)]
    paths = Paths(folder / study.results)
    unlocks = "--unlock" in options
    if not unlocks:
        _refuse(study, paths, targets, unaccounted)
    if note := _note_on_sources(study, paths):
        typer.echo(f"note: {note}", err=True)
    status = run_snakemake(
        [
            *("--config", f"study={study_file}"),
            *(["unaccounted=true"] if unaccounted else []),
            *_WORKFLOW,
            *([] if folder == Path.cwd() else ["--directory", str(folder)]),
            *(f"--profile={_profile(name)}" for name in profiles),
            *others,
            *(["--", *files] if files else []),
        ]
    )
    dry = unlocks or any(map(progress.DRY.fullmatch, options))
    asked = not targets or "report" in targets
    if status == 0 and asked and not dry and paths.report.exists():
        typer.echo(f"Report: {paths.report}", err=True)  # `--dag` has standard output for itself
    sys.exit(status)


def run_snakemake(words: Sequence[str]) -> int:
    """Run ``python -m snakemake`` with these words in this process, which has already imported its libraries.

    Returns:
        Its exit status.
    """
    sys.argv[1:] = words
    # Our handlers would print its messages a second time.
    logging.getLogger().handlers.clear()
    try:
        runpy.run_module("snakemake", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _refuse_config(options: Sequence[str]) -> None:
    """Refuse ``--config``, of which Snakemake would use only the last."""
    for word in options:
        if re.match(r"-C|--config(=|$)", word):
            raise DpsweepError(
                f"options of Snakemake: found {word}; dpsweep run sets it: name the study as its first word, "
                "and ask for sweeps of private data with --unaccounted"
            )


def _profile(name: str) -> str:
    """Return a profile; copy one of the package into the current folder, where the user edits it."""
    from snakemake.cli import get_profile_dir

    packaged, own = PROJECT / "profiles" / name, Path("profiles") / name
    if get_profile_dir(name) is not None or not packaged.is_dir():
        return name
    if not own.exists():
        shutil.copytree(packaged, own)
        typer.echo(f"{own}: copied from the package; its settings are yours to edit", err=True)
    return str(own)


def _refuse(study: Study, paths: Paths, targets: Sequence[str], unaccounted: bool) -> None:
    """Refuse a call, and its dry run, of which a job would be refused: by the budget, or on private data."""
    if "release" in targets:
        from dpsweep.release.train import check_budget

        check_budget(study, paths)
    refused = set() if unaccounted else refused_problems(study)
    if not refused or (targets and all(_trains_no_sweep(study, each) for each in targets)):
        return
    cells = (cell for cell in study.all_cells() if cell.problem in refused)
    if not all(paths.cell_trials(study, cell).exists() for cell in cells):
        raise StudyError(refusal(study))


def _trains_no_sweep(study: Study, target: str) -> bool:
    if Path(target).is_relative_to(study.results):
        return Path(target).relative_to(study.results).parts[:1] in _PREPARED
    return target in ("release", "plan", "check_cluster")


def _note_on_sources(study: Study, paths: Paths) -> str:
    if not (paths.results / "cells").is_dir():
        return ""
    # It imports the library of parquet files, which takes a moment.
    from dpsweep.analysis.frames import other_sources

    return other_sources(study, paths)


def target_files(study: Study, paths: Paths, target: str) -> list[str]:
    """Return all files of a target, because Snakemake makes only the files that are named.

    Args:
        study: the study.
        paths: its files.
        target: a rule of the workflow, or see `Outputs.asked`. A rule or a file is returned as it is.

    Raises:
        DpsweepError: there is no such target.
    """
    if target in ("audit", "release") and getattr(study, target) is None:
        raise DpsweepError(f"target: {target}: the study has no section `{target}`")
    inside = Path(target).parts
    is_cell = len(inside) == 2 and inside[0] in study.problems
    below = Path(target).is_relative_to(paths.results / "cells")
    if target in _RULES or (len(inside) > 1 and not is_cell and not below):
        return [target]
    return [str(file) for each in Outputs(study, paths).asked(target) for file in each.files]
