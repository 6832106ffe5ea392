"""The command `dpsweep run`, which runs the package's workflow in the folder of a study."""

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from typer.core import TyperCommand

from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import write_text
from dpsweep.cli.options import FoundStudyFile, locate_study, pick_cell
from dpsweep.cli.snakemake_call import is_profile, read_call, run_snakemake
from dpsweep.cli.surroundings import can_write
from dpsweep.config.cells import number
from dpsweep.config.messages import unknown
from dpsweep.planning.outputs import Outputs
from dpsweep.study import Cell, Study, StudyError, load_study
from dpsweep.study.commands import CALL
from dpsweep.study.find import CHANGED, PROJECT, split_study
from dpsweep.study.load import StudyLoader
from dpsweep.study.paths import Paths

app = typer.Typer()
# The user's own values of these options come later, and override them.
_OURS = (
    *("--snakefile", str(PROJECT / "Snakefile")),
    *("--workflow-profile", str(PROJECT / "profiles" / "default")),
)
_PREPARED = {"data", "backbones", "tokenizers", "features", "noise"}
_RULES = ("all", "report", "explore", "audit", "release", "plan", "check_cluster")


class _AsTyped(TyperCommand):
    """A command that receives all words unparsed; Click only handles ``--help``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Hide the words from Click, except ``--help``."""
        return super().parse_args(ctx, args if "--help" in args else ["--", *args])


@app.command(cls=_AsTyped)
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STUDY] [TARGETS]... [OPTIONS OF SNAKEMAKE]...",
            help="the study; figures, tables, problems, sweeps, cells or files to make (by default all); and "
            "options of Snakemake (-h lists them)",
        ),
    ] = None,
) -> None:
    """Run a study with Snakemake, in the folder of the study.

    Options of Snakemake that help: -n (what would run), --cores 4, --profile slurm.

    --set sweeps.pets.epsilon=[1,8] changes a value of the study for a quick look; it may be given more than
    once. The changed study is written beside the study, as pets.set.yaml.

    --unaccounted runs sweeps of data that the study marks as private; a release needs no such option.
    """
    os.environ[CALL] = shlex.join(["dpsweep", "run", *(words or [])])
    call = read_call(words or [])
    named, targets = split_study(call.targets)
    if named and call.study not in (None, named):
        raise DpsweepError(
            f"study: found {named}, and {call.study} in the options of Snakemake; allowed: one of them"
        )
    call = call.with_profiles({name: _profile(name) for name in call.profiles})
    found = locate_study(named or call.study)
    if call.changes:
        file, before = change_study(found.file, call.changes), found.study
        found = FoundStudyFile(file, load_study(file), found.folder)
        # To standard error, because Snakemake's output, as of --dag, may be the input of another program.
        typer.echo(f"{file}: the study with {', '.join(call.changes)}", err=True)
        for line in undrawn_values(before, found.study, targets):
            typer.echo(line, err=True)
    folder = call.settings.directory or found.folder
    if not can_write(folder):
        raise DpsweepError(
            f"{folder}: cannot be written, and Snakemake keeps its records in the folder of the study; "
            "allowed: another folder, with -d FOLDER, at which the paths in the study start then"
        )
    paths = Paths(Path(found.study.results))
    files = [each for target in targets for each in target_files(found.study, paths, target)]
    results = Paths(folder.resolve() / found.study.results)
    if not (call.permits_unaccounted or call.settings.dryrun or call.settings.touch):
        _refuse_unaccounted(found.study, results, targets)
    # Of a repeated option, the last value counts.
    options = [*call.options, "--config", *call.config, f"study={found.seen_from(folder)}"]
    options += ["unaccounted=true"] if call.unaccounted else []
    if folder.resolve() != Path.cwd():
        options += ["--directory", str(folder)]
    if note := _note_on_sources(found.study, results):
        typer.echo(f"note: {note}", err=True)
    watched = _watched(found.study, results, call.settings.touch)
    times = _times(watched)
    words_of_snakemake = [*_OURS, *options, *(["--", *files] if files else [])]
    status = run_snakemake(words_of_snakemake)
    if status == 0 and not call.settings.dryrun:
        after = _times(watched)
        new = [file for file in after if after[file] != times.get(file)]
        if call.settings.touch:
            typer.echo(
                f"--touch made nothing: {len(new)} files have a new time, and "
                f"{len(watched) - len(after)} of the study's {len(watched)} are still missing"
            )
        elif new:
            typer.echo(f"Report: {new[0]}")
    sys.exit(status)


def _refuse_unaccounted(study: Study, paths: Paths, targets: Sequence[str]) -> None:
    """Refuse a call that would train sweeps of private data, before anything runs."""
    if not study.has_private_data:
        return
    # It imports accountants, which takes a moment.
    from dpsweep.release.unaccounted import private_sweeps, refusal

    sweeps = private_sweeps(study)
    if not sweeps or (targets and all(_trains_no_sweep(study, each) for each in targets)):
        return
    cells = (cell for name in sweeps for cell in study.sweep_cells(name))
    if not all(paths.cell_trials(study, cell).exists() for cell in cells):
        raise StudyError(refusal(study))


def _trains_no_sweep(study: Study, target: str) -> bool:
    file = Path(target)
    if file.is_relative_to(study.results):
        return bool(_PREPARED.intersection(file.relative_to(study.results).parts[:1]))
    return target in ("release", "plan", "check_cluster")


def _note_on_sources(study: Study, paths: Paths) -> str:
    if not (paths.results / "cells").is_dir():
        return ""
    # It imports the library of parquet files, which takes a moment.
    from dpsweep.analysis.sources import other_sources

    return other_sources(study, paths)


def _watched(study: Study, paths: Paths, touched: bool) -> list[Path]:
    """Return the files whose times show what a call did: the report, or with ``--touch`` all files."""
    if not touched:
        return [paths.report]
    return Outputs(study, paths).files()


def _times(files: Iterable[Path]) -> dict[Path, int]:
    """Return the modification times of the files that exist, by the clock of their file system."""
    return {file: file.stat().st_mtime_ns for file in files if file.exists()}


def change_study(study_file: Path, changes: Sequence[str]) -> Path:
    """Write a study that extends another one and changes some values; return its file, beside the other.

    Args:
        study_file: the study to extend.
        changes: of the form ``key.of.the.study=value``, with the value in YAML.

    Raises:
        DpsweepError: a change has no key or no value in YAML.
    """
    content: dict[str, Any] = {"extends": study_file.name}
    for change in changes:
        key, equals, text = change.partition("=")
        try:
            value = yaml.load(text, Loader=StudyLoader)  # noqa: S506 (a SafeLoader)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise DpsweepError(f"--set {change}: not valid YAML: {error}") from None
        if not key or not equals:
            raise DpsweepError(f"--set: found {change}; allowed: such as sweeps.pets.epsilon=[1,8]")
        section = content
        *outer, last = key.split(".")
        for name in outer:
            section = section.setdefault(name, {})
            if not isinstance(section, dict):
                raise DpsweepError(
                    f"--set {change}: found {name} set to a value before; allowed: one of both"
                )
        section[last] = value
    changed = study_file.with_name(f"{study_file.stem}{CHANGED}")
    write_text(changed, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    return changed


def undrawn_values(before: Study, after: Study, targets: Iterable[str]) -> Iterator[str]:
    """Yield the values that a change adds to a sweep, but that the requested figures and tables do not draw.

    A figure of the ends of a grid, for example, does not draw the values between them.

    Args:
        before: the study without the change.
        after: the study with it.
        targets: the requested targets.
    """
    drawn = {**after.figures, **after.tables}
    # A target may also be a figure's file.
    names = dict.fromkeys(each if each in drawn else Path(each).stem for each in targets)
    for target in (name for name in names if name in drawn):
        cells = {cell for each in drawn[target].selections() for cell in after.cells(each)}
        for name, sweep in after.sweeps.items():
            own = [cell for cell in cells if cell.problem == sweep.problem.name]
            former = before.sweeps[name].axes if name in before.sweeps else {}
            for axis, values in sweep.axes.items():
                shown = {getattr(cell, axis) for cell in own}
                new = [each for each in values if each not in former.get(axis, values)]
                if own and (hidden := [number(each) for each in new if each not in shown]):
                    yield (
                        f"{target} does not draw {axis} {', '.join(hidden)} of sweeps.{name}: none of its "
                        "panels has it"
                    )


def target_files(study: Study, paths: Paths, target: str) -> list[str]:
    """Return all files of a target, because Snakemake makes only the files that are named.

    Args:
        study: the study.
        paths: its files.
        target: a figure, a table, a problem, a sweep, a cell (``problem/cell``, or its folder), a rule, or a
            file. Rules and files are returned as they are.

    Raises:
        DpsweepError: there is no such target; the message lists the nearest names.
    """
    cells = list(_cells(study, paths, target))
    lacking = [name for name in ("audit", "release") if getattr(study, name) is None]
    if target in lacking:
        raise DpsweepError(f"target: {target}: the study has no section `{target}`")
    if not cells and ("/" in target or target in _RULES):
        return [target]
    outputs = Outputs(study, paths)
    if target in study.figures:
        found = [outputs.figure(target)]
    elif target in study.tables:
        found = [outputs.table(target)]
    elif target in study.problems:
        found = [outputs.problem(target)]
    else:
        cells += study.sweep_cells(target) if target in study.sweeps else []
        found = [outputs.cell(cell) for cell in cells]
    if found:
        return [str(file) for output in found for file in output.files]
    if target in study.targets.undrawn:
        raise DpsweepError(f"target: {target} is not drawn: {study.targets.undrawn[target]}")
    rules = (name for name in _RULES if name not in lacking)
    names = dict.fromkeys([*rules, *study.figures, *study.tables, *study.problems, *study.sweeps])
    raise DpsweepError(f"target: {unknown(target, names)}, or a file below {study.results}/")


def _cells(study: Study, paths: Paths, target: str) -> Iterator[Cell]:
    """Yield the cell of a target ``problem/cell``, or of a file in the cell's folder.

    Raises:
        DpsweepError: the problem has no such cell.
    """
    folder = Path(target)
    if folder.is_relative_to(paths.results / "cells"):
        folder = folder.relative_to(paths.results / "cells")
        folder = Path(*folder.parts[:2])
    problem, name = folder.parent.name, folder.name
    if len(folder.parts) == 2 and problem in study.problems:
        yield pick_cell(study, problem, name)


def _profile(name: str) -> str:
    """Return the path of a profile; copy a profile of the package into the current folder, to be edited.

    Raises:
        DpsweepError: there is no profile of this name.
    """
    packaged, own = PROJECT / "profiles" / name, Path("profiles") / name
    if name == "none" or is_profile(name):
        return name
    if packaged.is_dir() and not own.exists():
        shutil.copytree(packaged, own)
        typer.echo(f"{own}: copied from the package; its settings are yours to edit", err=True)
    if own.exists():
        return str(own)
    known = [each.name for each in (PROJECT / "profiles").iterdir()]
    raise DpsweepError(f"--profile: {unknown(name, known)}, or a folder")
