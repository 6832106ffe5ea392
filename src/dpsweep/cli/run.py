"""The command `dpsweep run`, which runs the package's workflow in the folder of a study, and its progress.

Progress is what Snakemake's logger plugin ``rich`` leaves out. The plugin draws bars only on terminals; into
a file or pipe it writes only failures. Of a dry run with ``-p`` it writes how many jobs a rule has, not their
commands and resources.
"""

import contextlib
import logging
import os
import re
import runpy
import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from snakemake_interface_logger_plugins.common import LogEvent
from typer.core import TyperCommand

from dpsweep.base.errors import DpsweepError
from dpsweep.base.formatting import count, duration
from dpsweep.cli.options import find_study
from dpsweep.planning.outputs import Outputs
from dpsweep.release import refusal, refused_problems
from dpsweep.study import Paths, Study, StudyError
from dpsweep.study.load import CALL, PROJECT, split_profiles, split_study

app = typer.Typer()
_WORKFLOW = (
    *("--snakefile", str(PROJECT / "Snakefile")),
    *("--workflow-profile", str(PROJECT / "profiles" / "default")),
)
_PREPARED = [(name,) for name in ("data", "backbones", "tokenizers", "features", "noise")]
_RULES = ("all", "report", "explore", "audit", "release", "plan", "check_cluster")
_LINES = 10
_DRY = re.compile(r"-\w*n\w*|--dry-?run")
"""An option of a dry run, alone or together with others (``-np``)."""
_COMMANDS = re.compile(r"-\w*p\w*|--printshellcmds")
# Resources that each job asks for, by the words of a line, and those with a number of their own for each job.
_ASKED = {"slurm_partition": "partition", "slurm_account": "account", "gpu": "GPUs", "gres": "gres"}
_ASKED |= {"cpus_per_task": "CPUs", "slurm_extra": "sbatch"}
_RANGES = {"mem_mb": "MB", "runtime": "minutes"}


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
    dry = unlocks or any(map(_DRY.fullmatch, options))
    asked = not targets or bool({"all", "report"} & set(targets))
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


# -- progress ------------------------------------------------------------------------------


def show_progress() -> None:
    """Write the progress of this call of Snakemake if no terminal shows bars, except with ``--touch``."""
    if not sys.stderr.isatty() and not {"--touch", "-t"} & set(sys.argv):
        logging.getLogger().addHandler(Tenths())


def show_requests(workflow: Any) -> None:
    """In a dry run with ``-p``, write once for each rule what its jobs ask for.

    Args:
        workflow: of Snakemake.
    """
    if all(any(map(each.fullmatch, sys.argv)) for each in (_DRY, _COMMANDS)):
        logging.getLogger().addHandler(Requests(workflow))


class Requests(logging.Handler):
    """A handler that writes resources and command of each rule's jobs to standard error."""

    def __init__(self, workflow: Any) -> None:
        """Prepare for the jobs of a workflow of Snakemake."""
        super().__init__()
        self._workflow = workflow

    def emit(self, record: logging.LogRecord) -> None:
        """Write the lines when Snakemake has counted the jobs."""
        if getattr(record, "event", None) != LogEvent.RUN_INFO:
            return
        rules: dict[str, list[Any]] = {}
        for job in self._workflow.dag.needrun_jobs():
            if job.shellcmd:
                rules.setdefault(job.rule.name, []).append(job)
        for name, jobs in rules.items():
            sys.stderr.write(f"{name}: {requested([dict(job.resources) for job in jobs])}\n")
            sys.stderr.write(f"  {jobs[0].shellcmd}\n")
        sys.stderr.flush()


def requested(jobs: Sequence[dict[str, Any]]) -> str:
    """Describe the resources of a rule's jobs.

    >>> job = {"slurm_partition": "gpu", "gpu": 1, "cpus_per_task": 4, "mem_mb": 3000, "runtime": 25}
    >>> requested([job, job | {"runtime": 40}])
    '2 jobs, partition gpu, GPUs 1, CPUs 4, 3000 MB, 25 to 40 minutes'
    >>> requested([{"gpu": 1, "runtime": 25}])
    '1 job, partition chosen when it is sent, GPUs 1, 25 minutes'

    Args:
        jobs: resources of each by name.
    """

    def different(key: str) -> list[Any]:
        return sorted({job[key] for job in jobs if job.get(key)})

    if not any("gpu" in job for job in jobs):
        return f"{count(len(jobs), 'job')}, on this machine"
    words = [
        f"{word} {_alternatives(found)}"
        for key, word in _ASKED.items()
        if (found := different(key))
    ]
    if not different("slurm_partition"):  # by the plugin, from the job's time, or by Slurm
        words.insert(0, "partition chosen when it is sent")
    for key, unit in _RANGES.items():
        if found := different(key):
            words.append(f"{' to '.join(map(str, sorted({found[0], found[-1]})))} {unit}")
    return ", ".join([count(len(jobs), "job"), *words])


def _alternatives(values: Iterable[Any]) -> str:
    return " or ".join(map(str, values))


class Tenths(logging.Handler):
    """A handler that writes finished jobs, the remaining time and the first figure to standard error."""

    def __init__(self) -> None:
        super().__init__()
        self._began = time.monotonic()
        self._written = 0
        self._figures: dict[int, str] = {}  # file of each job that draws one
        self._any_figure = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line if a message of Snakemake completes another tenth or the first figure."""
        event = getattr(record, "event", None)
        if event == LogEvent.PROGRESS:
            self._progress(int(record.done), int(record.total))  # type: ignore[attr-defined]
        elif event == LogEvent.JOB_INFO and record.rule_name == "figure":  # type: ignore[attr-defined]
            self._figures[record.jobid] = record.output[0]  # type: ignore[attr-defined]
        elif event == LogEvent.JOB_FINISHED and not self._any_figure:
            file = self._figures.get(record.job_id)  # type: ignore[attr-defined]
            if file is not None:
                self._any_figure, spent = True, time.monotonic() - self._began
                self._write(f"the first figure is there after {duration(spent)}: {file}")

    def _progress(self, done: int, total: int) -> None:
        tenth = _LINES * done // max(total, 1)
        if tenth <= self._written:
            return
        self._written = tenth
        spent = time.monotonic() - self._began
        left = f", about {duration(spent / done * (total - done))} left" if done < total else ""
        self._write(f"{done} of {total} jobs ({done / total:.0%}), {duration(spent)} spent{left}")

    def _write(self, line: str) -> None:
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")
        sys.stderr.flush()
