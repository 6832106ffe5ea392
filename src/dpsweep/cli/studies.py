"""Commands for studies: write, check, plan, compare, watch, clean."""

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from dpsweep.base.errors import DpsweepError
from dpsweep.base.gpus import Gpu, describe, visible_gpus
from dpsweep.base.units import duration
from dpsweep.cli.options import (
    FoundStudy,
    StudyName,
    Teraflops,
    find_study,
)
from dpsweep.config.messages import shorten
from dpsweep.study import Study, StudyError, load_study
from dpsweep.study.commands import DEFAULT_STUDY, make_command
from dpsweep.study.find import PAPER, name_of, named_study, split_study
from dpsweep.study.paths import Paths

app = typer.Typer()


@app.command()
def new(
    study_file: Annotated[
        Path, typer.Argument(metavar="STUDY", help="file to write, such as studies/pets.yaml")
    ],
    second: Annotated[
        Path | None,
        typer.Argument(
            metavar="[TEST]", help="the second file of --texts or --embeddings", hidden=True
        ),
    ] = None,
    images: Annotated[
        Path | None, typer.Option(help="a folder of images: <split>/<class>/, or <class>/")
    ] = None,
    hub: Annotated[
        str | None, typer.Option(help="a dataset of the Hugging Face hub: owner/name")
    ] = None,
    texts: Annotated[
        Path | None,
        typer.Option(
            metavar="TRAIN [TEST]", help="one or two tables of texts: csv, tsv, jsonl or parquet"
        ),
    ] = None,
    embeddings: Annotated[
        Path | None,
        typer.Option(
            metavar="TRAIN [TEST]",
            help="one or two files of embeddings with labels: npz, npy, safetensors or parquet",
        ),
    ] = None,
    labels: Annotated[
        list[Path] | None,
        typer.Option(help="of --embeddings, in a file of their own; again for those of TEST"),
    ] = None,
    backbone: Annotated[
        list[str] | None,
        typer.Option(help="from the extended study; with images up to two, the weaker first"),
    ] = None,
    input_column: Annotated[
        str | None, typer.Option(help="column or array of images, texts or embeddings")
    ] = None,
    label_column: Annotated[str | None, typer.Option(help="column or array of labels")] = None,
    configuration: Annotated[
        str | None, typer.Option(help="which one, if the hub dataset has several")
    ] = None,
    method: Annotated[
        Literal["head", "network"] | None,
        typer.Option(
            help="head: a head on frozen features, which a laptop trains; network: the extended study's "
            "method, with the network in the loop; by default the latter where there is a GPU"
        ),
    ] = None,
    extends: Annotated[
        str | None,
        typer.Option(help="the study to extend: a file, or a name; by default the paper's"),
    ] = None,
    private: Annotated[
        bool | None,
        typer.Option(
            "--private/--public",
            help="private data get a study for a release, whose epsilon covers everything; public data a "
            "sweep, whose trials no epsilon covers together",
        ),
    ] = None,
    epsilon: Annotated[
        float, typer.Option(help="of the released model, with --private", min=0.001)
    ] = 1.0,
) -> None:
    """Look at a dataset and write a first study for it: a sweep, or with --private a release."""
    from dpsweep.recommend import dataset_facts
    from dpsweep.recommend.draft import new_study

    if second is not None:  # an option takes one value, so the second file is an argument
        study_file, second = sorted(
            (study_file, second), key=lambda file: file.suffix not in (".yaml", ".yml")
        )
        if texts is None and embeddings is None:
            raise StudyError(
                f"found {second}; allowed: one file to write, and a file after --texts or --embeddings"
            )
    if sum(given is not None for given in (images, hub, texts, embeddings)) != 1:
        raise StudyError(
            "found none or several of --images, --hub, --texts, --embeddings; allowed: one of them"
        )
    if embeddings is not None and (backbone or method == "network"):
        raise StudyError("found --embeddings with a network; allowed: a head on them alone")
    if labels and embeddings is None:
        raise StudyError("found --labels without --embeddings; allowed: with them")
    if images is not None:
        found = dataset_facts.look_at_folder(images)
    elif hub is not None:
        found = dataset_facts.look_at_hub(hub, input_column, label_column, configuration)
    elif embeddings is not None:
        found = dataset_facts.look_at_embeddings(
            embeddings, second, labels or (), input_column, label_column
        )
    else:
        assert texts is not None  # noqa: S101 (one of the four is given)
        found = dataset_facts.look_at_tables(texts, second, input_column, label_column)
    if private is None:
        private = _ask_whether_private()
    base = extends or (str(DEFAULT_STUDY) if DEFAULT_STUDY.exists() else PAPER)
    gpus = visible_gpus()
    head = method == "head" or (method is None and not gpus)
    study = new_study(study_file, base, found, backbone or (), head, epsilon if private else None)
    other = (
        ""
        if embeddings is not None
        else " --method network trains in the network, which takes a GPU."
        if head
        else " --method head trains on frozen features in minutes."
    )
    steps = (
        _release_steps(study_file, study)
        if private
        else _sweep_steps(study_file, study, gpus, other)
    )
    counts = zip(found.classes, found.train_counts, found.test_counts, strict=True)
    each = shorten(f"{name} {train:,} + {test:,}" for name, train, test in counts)
    read_as = "; ".join(filter(None, [found.reading, found.left_out]))
    typer.echo(f"Read as: {read_as}\nTraining + test examples: {each}")
    typer.echo(
        f"{study_file}: {len(found.classes)} classes, {found.train_size:,} training and "
        f"{found.test_size:,} test examples; {steps}"
    )


def _ask_whether_private() -> bool:
    """Ask at a terminal; without one, data are public unless ``--private`` is given."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    return typer.confirm("Are these data private?", default=False)


def _sweep_steps(study_file: Path, study: Study, gpus: list[Gpu], other_method: str) -> str:
    """Return the size and cost of a new study of public data, and its next commands."""
    from dpsweep.planning.device import this_machine
    from dpsweep.planning.plan import Plan

    device = this_machine(gpus)
    estimates = Plan(study, Paths(Path(study.results)), device=device).estimates().values()
    seconds = sum(each.seconds for each in estimates)
    return (
        f"{len(study.all_cells())} cells, {len(study.figures)} figures, {len(study.tables)} tables; "
        f"about {duration(seconds)} of {device.unit} time.{other_method} Next:\n"
        f"  dpsweep check {study_file}\n"
        f"  dpsweep plan {study_file}\n"
        f"  dpsweep run {study_file}"
    )


def _release_steps(study_file: Path, study: Study) -> str:
    """Return the next commands for a new study of private data: a release, not a sweep."""
    (sweep,) = study.sweeps
    release = study.release
    assert release is not None  # noqa: S101 (the draft has the section)
    return (
        f"marked private, with a release at epsilon {release.epsilon:g}, which covers all that it trains, "
        f"and a budget of that. No sweep runs without --unaccounted. Next:\n"
        f"  dpsweep check {study_file}\n"
        f"  dpsweep recommend {sweep} --study {study_file} --epsilon {release.epsilon:g}\n"
        f"  dpsweep run {study_file} release\n"
        f"  dpsweep verify {Paths(Path(study.results)).release}"
    )


@app.command()
def compare(
    first: Annotated[str, typer.Argument(metavar="STUDY", help="the study's file, or its name")],
    second: Annotated[str, typer.Argument(metavar="OTHER", help="another one")],
) -> None:
    """Print two studies side by side, in Markdown: settings, best accuracies, plateaus of C."""
    from dpsweep.report.compare import compare as compared

    studies = [load_study(named_study(name, Path())) for name in (first, second)]
    sides = [(study, Paths(Path(study.results))) for study in studies]
    typer.echo("\n".join(compared(*sides)))


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
        _check_noise(study, paths)
        return
    typer.echo(f"{file}: {study.title}")
    for line in check_study(study, paths, seconds, every_target):
        typer.echo(line)


def _check_noise(study: Study, paths: Paths) -> None:
    from dpsweep.analysis.tails import TOLERATED, study_calibrations, tail_costs, tail_lines

    calibrations = study_calibrations(study, paths)
    typer.echo("\n".join(tail_lines(calibrations)))
    for cost in tail_costs(calibrations):
        if cost.refused:
            raise DpsweepError(
                f"{cost.generator.name} costs more than {TOLERATED:g} of delta: "
                "choose a larger noise multiplier (smaller epsilon, or fewer epochs)"
            )


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
    from dpsweep.planning.device import device_of
    from dpsweep.planning.plan import GPUS, Plan

    named, wanted = split_study(targets or [])
    _, study, paths = find_study(named or study_file)
    here = [] if teraflops else visible_gpus()
    device = device_of(teraflops, here)
    chosen = Plan(study, paths, wanted, device)
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
        bool, typer.Option("--failed", help="list failures with their reason and log")
    ] = False,
) -> None:
    """Show progress, failures, the cost so far and the time left."""
    from dpsweep.planning.device import device_of
    from dpsweep.planning.failures import summary
    from dpsweep.planning.status import Status

    file, study, paths = find_study(study_name or study_file)
    if not paths.results.is_dir():
        raise DpsweepError(
            f"{paths.results.resolve()}: no such folder, so nothing of {name_of(file)} has run; "
            "begin with: " + make_command(file, [])
        )
    here = [] if teraflops else visible_gpus()
    state = Status(study, paths, device=device_of(teraflops, here))
    if not failed:
        typer.echo("\n".join(state.lines(len(here))))
        if here:
            typer.echo(describe(here))
        return
    failures = state.failures()
    typer.echo("\n".join(summary(failures)) if failures else "No job has failed.")


@app.command()
def clean(
    study_files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="STUDY...", help="all studies that share the results folder"),
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="remove them; without it they are listed")
    ] = False,
) -> None:
    """List the files of former settings, or remove them; finished trials stay in the store."""
    from dpsweep.base.units import count
    from dpsweep.planning.former import former_files
    from dpsweep.planning.former import remove as remove_files

    opened = [find_study(file) for file in study_files] if study_files else [find_study(None)]
    folders = {paths.results.resolve() for _, _, paths in opened}
    if len(folders) > 1:
        listed = ", ".join(map(str, sorted(folders)))
        raise DpsweepError(f"found studies with results in {listed}; allowed: one folder")
    _, _, paths = opened[0]
    files = former_files(paths, [study for _, study, _ in opened])
    size = sum(file.stat().st_size for file in files) / 1e6
    said = f"{count(len(files), 'file')} of former settings, {size:.1f} MB"
    if remove:
        remove_files(files)
        typer.echo(f"removed {said}")
        return
    typer.echo("\n".join([*map(str, files), said]))
    if files:
        typer.echo(
            "None of the studies that you named would make them. Another study with the same results "
            "folder may: name it too. --remove removes them."
        )
