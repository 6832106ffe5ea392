"""The command that runs the workflow of the package, in the folder of a study."""

import itertools
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import write_text
from dpsweep.cli.options import StudyName, find_study
from dpsweep.study import Study, load_study
from dpsweep.study.commands import CALL
from dpsweep.study.find import CHANGED, PROJECT, split_study
from dpsweep.study.load import StudyLoader
from dpsweep.study.messages import unknown
from dpsweep.study.paths import Paths

app = typer.Typer()
# Where Snakemake looks for the profiles of a user.
_USER_PROFILES = Path.home() / ".config" / "snakemake"
_RULES = ("all", "report", "explore", "audit", "release", "plan")


@app.command(context_settings={"ignore_unknown_options": True})
def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STUDY] [TARGETS]... [OPTIONS OF SNAKEMAKE]...",
            help="the study; figures, tables, problems or files to make (by default all); and, from the "
            "first - on, what Snakemake is told",
        ),
    ] = None,
) -> None:
    """Run a study with Snakemake, in the folder of the study.

    Options of Snakemake that help: -n (what would run), --cores 4, --profile slurm.

    --set sweeps.pets.epsilon=[1,8] changes a value of the study for a quick look; it may be given more than
    once. The changed study is written beside the study, as pets.set.yaml.
    """
    called = shlex.join(["dpsweep", "run", *(words or [])])
    own = list(itertools.takewhile(lambda word: not word.startswith("-"), words or []))
    options = (words or [])[len(own) :]
    named, targets = split_study(own)
    file, study, paths = find_study(named)
    if changes := _taken(options, "--set"):
        file = change_study(file, changes)
        study = load_study(file)
        typer.echo(f"{file}: the study with {', '.join(changes)}")
    files = [target_file(study, paths, target) for target in targets]
    if "--config" in options:
        options.insert(options.index("--config") + 1, f"study={file}")
    else:
        options = ["--config", f"study={file}", *options]
    _bring_profile(options)
    os.environ[CALL] = called
    # Snakemake takes the place of this process, and gets its signals.
    os.execv(sys.executable, [*_snakemake(options), *(["--", *files] if files else [])])  # noqa: S606


@app.command()
def watch(
    study_name: StudyName = None,
    minutes: Annotated[float, typer.Option(min=0, help="between two pages")] = 1.0,
) -> None:
    """Draw the results so far again and again while a study runs, until all is done.

    The page in partial/ of the results loads itself anew.
    """
    from dpsweep.planning.outputs import Outputs
    from dpsweep.planning.provenance import not_current

    file, study, paths = find_study(study_name)
    page = Paths(paths.results, partial=True).report
    # Nothing of the study is made or changed, so nothing is locked.
    options = ["--config", f"study={file}", "partial=true", "--nolock", "--cores", "1"]
    while not_current(paths, Outputs(study, paths).every()):
        drawn = subprocess.run(_snakemake(options), capture_output=True, text=True, check=False)
        if drawn.returncode != 0:
            raise DpsweepError(f"the results so far cannot be drawn:\n{drawn.stderr[-2000:]}")
        typer.echo(f"{time.strftime('%H:%M:%S')} {page.resolve()}")
        time.sleep(60 * minutes)
    typer.echo(f"All is done: {paths.report.resolve()}")


def _snakemake(options: Sequence[str]) -> list[str]:
    return [
        *(sys.executable, "-m", "snakemake", "--snakefile", str(PROJECT / "Snakefile")),
        *("--workflow-profile", str(PROJECT / "profiles" / "default"), *options),
    ]


def _taken(options: list[str], name: str) -> list[str]:
    """Take an option with its values off the options of Snakemake."""
    found = []
    while name in options[:-1]:
        place = options.index(name)
        found.append(options[place + 1])
        del options[place : place + 2]
    return found


def change_study(study_file: Path, changes: Sequence[str]) -> Path:
    """Write a study that extends another one with some values changed, beside it; return its file.

    Args:
        study_file: the other one.
        changes: ``key.of.the.study=value`` each, with the value in YAML.

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
        section[last] = value
    changed = study_file.with_name(f"{study_file.stem}{CHANGED}")
    write_text(changed, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    return changed


def target_file(study: Study, paths: Paths, target: str) -> str:
    """Return what Snakemake calls a target.

    Args:
        study: the study.
        paths: its files.
        target: a figure, a table, a problem, a rule, or a file, which is its own name.

    Raises:
        DpsweepError: there is nothing of that name; the message has the nearest ones.
    """
    if "/" in target or target in _RULES:
        return target
    if target in study.figures:
        return str(paths.figure(target, "pdf"))
    if target in study.tables:
        return str(paths.table(target, "md"))
    if target in study.problems:
        return str(paths.problem(target))
    if target in study.targets.undrawn:
        raise DpsweepError(f"target: {target} is not drawn: {study.targets.undrawn[target]}")
    names = [*_RULES, *study.figures, *study.tables, *study.problems]
    raise DpsweepError(f"target: {unknown(target, names)}, or a file below {study.results}/")


def _bring_profile(options: list[str]) -> None:
    """Copy a profile of the package into the folder of the study, where it is edited."""
    if "--profile" not in options[:-1]:
        return
    name = options[options.index("--profile") + 1]
    packaged, own = PROJECT / "profiles" / name, Path("profiles") / name
    if not Path(name).is_dir() and packaged.is_dir():
        if not own.exists():
            shutil.copytree(packaged, own)
            typer.echo(f"{own}: copied from the package; its settings are yours to edit")
        options[options.index("--profile") + 1] = str(own)
    elif not any(place.is_dir() for place in (Path(name), own, _USER_PROFILES / name)):
        known = [each.name for each in (PROJECT / "profiles").iterdir()]
        raise DpsweepError(f"--profile: {unknown(name, known)}, or a folder")
