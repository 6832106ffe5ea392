"""Commands for studies: write, check, plan, compare, watch, clean."""

import math
import os
import re
import shutil
from pathlib import Path
from typing import Annotated

import typer

from dpsweep.base.errors import DpsweepError
from dpsweep.base.formatting import count
from dpsweep.base.gpus import describe, visible_gpus
from dpsweep.cli.options import FoundStudy, StudyName, Teraflops, find_study, path
from dpsweep.planning import outputs
from dpsweep.privacy import Calibration, Sampling
from dpsweep.release import budget_in_words, price, refused_problems
from dpsweep.study import Paths, Study, StudyError, load
from dpsweep.study.messages import shorten

app = typer.Typer()


@app.command()
def new(
    study_file: Annotated[
        Path,
        typer.Argument(
            metavar="STUDY", parser=path, help="file to write, such as studies/pets.yaml"
        ),
    ],
    test: Annotated[
        Path | None, typer.Argument(parser=path, help="the test file of --texts or --embeddings")
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(parser=path, help="a folder of images: <split>/<class>/, or <class>/"),
    ] = None,
    hub: Annotated[
        str | None, typer.Option(help="a dataset of the Hugging Face hub: owner/name")
    ] = None,
    texts: Annotated[
        Path | None, typer.Option(parser=path, help="a table of texts: csv, tsv, jsonl or parquet")
    ] = None,
    embeddings: Annotated[
        Path | None,
        typer.Option(
            parser=path, help="a file of embeddings with labels: npz, safetensors or parquet"
        ),
    ] = None,
    input_column: Annotated[
        str | None,
        typer.Option("--input-column", "--text-column", help="of images, texts or embeddings"),
    ] = None,
    label_column: Annotated[str | None, typer.Option(help="column or array of labels")] = None,
    unit: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN|PATTERN|folder|row",
            help="what epsilon protects with all of its rows: a column or array; for images a pattern with "
            "one group, such as '(patient\\d+)_', or folder for <class>/<person>/; row: every row alone",
        ),
    ] = None,
    backbone: Annotated[str | None, typer.Option(help="of the extended study")] = None,
    extends: Annotated[
        str | None, typer.Option(help="a study's file or name; by default the paper's")
    ] = None,
    private: Annotated[
        bool,
        typer.Option(
            "--private", help="write a release, whose epsilon covers everything, not a sweep"
        ),
    ] = False,
    epsilon: Annotated[
        float, typer.Option(help="of the released model, with --private", min=0.001)
    ] = 1.0,
) -> None:
    """Look at a dataset and write a first study for it: a sweep, or with --private a release."""
    from dpsweep.recommend.new import look_at, new_study

    places = {"images": images, "hub": hub, "texts": texts, "embeddings": embeddings}
    given = [(what, place) for what, place in places.items() if place is not None]
    if len(given) != 1:
        raise StudyError(
            "found none or several of --images, --hub, --texts, --embeddings; allowed: one of them"
        )
    ((what, place),) = given
    if test is not None and what not in ("texts", "embeddings"):
        raise StudyError(f"found {test}; allowed: a test file with --texts or --embeddings")
    if backbone is not None and what == "embeddings":
        raise StudyError("found --embeddings with --backbone; allowed: a head on them alone")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*\.ya?ml", study_file.name):
        raise StudyError(
            f"{study_file}: found the name {study_file.name}; allowed: letters, digits, '.', '_' and '-', a "
            "letter or digit first, .yaml or .yml last"
        )
    if study_file.exists():
        raise StudyError(f"{study_file}: exists already; allowed: the name of a new file")
    found = look_at(what, str(place), test, input_column, label_column, unit)
    if what != "hub":
        found = found.seen_from(load.home(study_file))
    base = extends or (str(load.DEFAULT_STUDY) if load.DEFAULT_STUDY.exists() else load.PAPER)
    head = not visible_gpus()
    study = new_study(study_file, base, found, backbone, head, epsilon if private else None)
    typer.echo("\n".join(found.lines(study.reads_bytes(study_file.stem))))
    typer.echo(
        f"{study_file}: {len(found.classes)} classes, {found.train_size:,} training and "
        f"{found.test_size:,} test examples; next: dpsweep check {study_file}"
    )


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="STUDY", help="the study's file, or its name")],
    second: Annotated[str, typer.Argument(metavar="OTHER", help="another one")],
) -> None:
    """Print two studies side by side, in Markdown: settings and best accuracies."""
    from dpsweep.report.summary import compare as compared

    # Before `find_study` changes the folder.
    files = [load.named_study(name, Path()).resolve() for name in (first, second)]
    found = (find_study(file) for file in files)
    sides = [(study, Paths(paths.results.resolve())) for _, study, paths in found]
    typer.echo("\n".join(compared(*sides)))


@app.command()
def keys(
    section: Annotated[
        str,
        typer.Argument(help="a section, such as release, or a key, such as gpus; by default all"),
    ] = "",
) -> None:
    """Print the keys of a study: type, default, an example, and what they mean."""
    from dpsweep.study.keys import as_lines, study_keys

    width = shutil.get_terminal_size().columns
    typer.echo("\n".join(as_lines(study_keys(section), width)))


@app.command()
def check(
    study_name: StudyName = None,
    study_file: FoundStudy = None,
    noise: Annotated[
        bool,
        typer.Option(
            "--noise", help="how much delta noise without tails would cost; calibrates if needed"
        ),
    ] = False,
    seconds: Annotated[
        float,
        typer.Option(help="seconds for trying the first step of every network; 0 skips networks"),
    ] = 20.0,
    every_target: Annotated[
        bool,
        typer.Option("--all", help="list what the study lacks for each target that is not drawn"),
    ] = False,
) -> None:
    """Check a study, its local data and its networks, and print its size."""
    from dpsweep.cli.check import check as check_study

    file, study, paths = find_study(study_name or study_file)
    if noise:
        from dpsweep.privacy.noise import tail_costs

        for line in tail_costs(study_calibrations(study, paths)):
            typer.echo(line)
        return
    typer.echo(f"{file}: {study.title}")
    for line in check_study(study, paths, seconds, every_target):
        typer.echo(line)


def study_calibrations(study: Study, paths: Paths) -> list[Calibration]:
    """Return every distinct calibration of a study: read if its file exists, otherwise computed.

    Raises:
        CalibrationError: a stored calibration is for another setting, or does not give its epsilon.
        DamagedFileError: a stored calibration was edited or damaged.
    """
    from dpsweep.privacy.calibration import calibrate_sampling
    from dpsweep.privacy.noise import read_calibration

    found: dict[tuple[float, Sampling], Calibration] = {}
    for cell in study.all_cells():
        dataset = study.problems[cell.problem].dataset
        sampling = study.sampling(dataset, cell.epochs, cell.batch_size)
        if (cell.epsilon, sampling) not in found and math.isfinite(cell.epsilon):
            path = paths.noise(study, dataset, cell.epsilon, cell.epochs, cell.batch_size)
            target = cell.epsilon, study.privacy.delta, sampling
            found[cell.epsilon, sampling] = (
                read_calibration(path, *target) if path.exists() else calibrate_sampling(*target)
            )
            if len(found) % 50 == 0:
                typer.echo(f"{len(found)} calibrations", err=True)
    return list(found.values())


@app.command()
def plan(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            help="figures, tables, problems, sweeps, cells or files; by default everything. "
            "A file of YAML is the study."
        ),
    ] = None,
    study_file: FoundStudy = None,
    teraflops: Teraflops = 0.0,
    gpus: Annotated[
        list[int] | None,
        typer.Option(
            "--gpus",
            min=1,
            help="number of GPUs (on a machine without one, of cores) for the wall time; may be repeated",
        ),
    ] = None,
) -> None:
    """List what is missing for some targets, with estimated trials, time, wall time and disk space."""
    from dpsweep.analysis.power import outlook
    from dpsweep.planning.cost import device_of
    from dpsweep.planning.plan import GPUS, Plan

    named, wanted = load.split_study(targets or [])
    _, study, paths = find_study(named or study_file)
    here = [] if teraflops else visible_gpus()
    device = device_of(teraflops, here)
    if refused := refused_problems(study):
        typer.echo(f"{price(study)}. They need --unaccounted, and are not planned.")
    chosen = Plan(study, paths, wanted, device, refused=refused)
    counts = [len(here)] if here else GPUS if device.unit == "GPU" else [os.cpu_count() or 1]
    if here:
        typer.echo(describe(here))
    typer.echo("\n".join([*chosen.lines(gpus or counts), *([] if wanted else outlook(study))]))


@app.command()
def status(
    study_name: StudyName = None,
    study_file: FoundStudy = None,
    teraflops: Teraflops = 0.0,
    failed: Annotated[
        bool, typer.Option("--failed", help="list jobs that failed with their last words and log")
    ] = False,
) -> None:
    """Show progress, failures, the cost so far and the time left."""
    from dpsweep.planning.cost import device_of
    from dpsweep.planning.plan import Status

    file, study, paths = find_study(study_name or study_file)
    refused = refused_problems(study)
    if not paths.results.is_dir():
        first = ["release"] if refused and study.release else []
        raise DpsweepError(
            f"{paths.results.resolve()}: no such folder, so nothing of {load.name_of(file)} has run; "
            "begin with: " + load.make_command(file, first)
        )
    here = [] if teraflops else visible_gpus()
    state = Status(study, paths, device=device_of(teraflops, here), refused=refused)
    for line in state.failed_lines() if failed else state.lines(len(here)):
        typer.echo(line)
    if refused and not failed:
        typer.echo(f"{shorten(sorted(refused))}: private, trained only with --unaccounted")
    if study.release is not None and not failed:
        typer.echo(f"release: {'done' if paths.release.exists() else 'waiting'}")
        typer.echo(budget_in_words(study, paths))
    if here and not failed:
        typer.echo(describe(here))


@app.command()
def clean(
    study_files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="STUDY...", parser=path, help="all studies that share the results folder"
        ),
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="remove them; without it they are listed")
    ] = False,
) -> None:
    """List the files of former settings, or remove them; finished trials stay in the store."""
    # Before `find_study` changes the folder.
    files = [load.named_study(str(file), Path()).resolve() for file in study_files or ()]
    found = map(find_study, files) if files else [find_study(None)]
    opened = [(study, paths.results.resolve()) for _, study, paths in found]
    folders = {results for _, results in opened}
    if len(folders) > 1:
        listed = ", ".join(map(str, sorted(folders)))
        raise DpsweepError(f"found studies with results in {listed}; allowed: one folder")
    former = outputs.former_files(Paths(folders.pop()), [study for study, _ in opened])
    size = sum(file.stat().st_size for file in former) / 1e6
    said = f"{count(len(former), 'file')} of former settings, {size:.1f} MB"
    if remove:
        outputs.remove(former)
        typer.echo(f"removed {said}")
        return
    typer.echo("\n".join([*map(str, former), said]))
    if former:
        typer.echo(
            "None of the studies that you named would make them. Another study with the same results "
            "folder may: name it too. --remove removes them."
        )
