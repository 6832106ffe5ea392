"""Commands for people: write a study, check it, price it, watch it."""

import logging
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from dpsweep.base.errors import DpsweepError
from dpsweep.base.gpus import describe, visible_gpus
from dpsweep.cli.options import SiteFile, StudyFile, open_study, read_site_file
from dpsweep.study import Study, StudyError
from dpsweep.study.commands import DEFAULT_STUDY
from dpsweep.study.paths import Paths

app = typer.Typer()


@app.command()
def new(
    study_file: Annotated[
        Path, typer.Argument(metavar="STUDY", help="file to write, such as studies/pets.yaml")
    ],
    images: Annotated[
        Path | None, typer.Option(help="a folder of images: <split>/<class>/, or <class>/")
    ] = None,
    hub: Annotated[
        str | None, typer.Option(help="a dataset of the Hugging Face hub: owner/name")
    ] = None,
    texts: Annotated[
        tuple[Path, Path] | None,
        typer.Option(metavar="TRAIN TEST", help="two tables of texts: csv, tsv, jsonl or parquet"),
    ] = None,
    backbone: Annotated[
        list[str] | None,
        typer.Option(help="from the extended study; with images up to two, the weaker first"),
    ] = None,
    input_column: Annotated[str | None, typer.Option(help="column of images or texts")] = None,
    label_column: Annotated[str | None, typer.Option(help="column of labels")] = None,
    configuration: Annotated[
        str | None, typer.Option(help="which one, if the hub dataset has several")
    ] = None,
    extends: Annotated[Path, typer.Option(help="the study to extend")] = DEFAULT_STUDY,
) -> None:
    """Look at a dataset and write a first study for it."""
    from dpsweep.recommend import look
    from dpsweep.recommend.new import new_study

    if sum(given is not None for given in (images, hub, texts)) != 1:
        raise StudyError("found none or several of --images, --hub, --texts; allowed: one of them")
    if images is not None:
        found = look.look_at_folder(images)
    elif hub is not None:
        found = look.look_at_hub(hub, input_column, label_column, configuration)
    else:
        assert texts is not None  # noqa: S101 (one of the three is given)
        found = look.look_at_tables(*texts, input_column, label_column)
    study = new_study(study_file, extends, found, backbone or ())
    typer.echo(
        f"{study_file}: {len(found.classes)} classes, {found.train_size:,} training and "
        f"{found.test_size:,} test examples; {len(study.all_cells())} cells, "
        f"{len(study.figures)} figures, {len(study.tables)} tables. Next:\n"
        f"  dpsweep check --study {study_file}\n"
        f"  dpsweep plan --study {study_file}\n"
        f"  snakemake --config study={study_file} -- all"
    )


@app.command()
def check(
    study_file: StudyFile = DEFAULT_STUDY,
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
) -> None:
    """Check a study, its local data and its networks, and print its size."""
    from dpsweep.cli.check import check as check_study

    study, paths = open_study(study_file)
    if noise:
        _check_noise(study, paths)
        return
    typer.echo(f"{study_file}: {study.title}")
    for line in check_study(study, paths, seconds):
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
            help="figures, tables, problems, sweeps, cells or files; by default everything"
        ),
    ] = None,
    study_file: StudyFile = DEFAULT_STUDY,
    site: SiteFile = None,
    gpus: Annotated[
        list[int] | None,
        typer.Option(
            "--gpus",
            min=1,
            help="number of GPUs (without one, of cores) for the wall time; may be repeated",
        ),
    ] = None,
) -> None:
    """List what is missing for some targets, with estimated trials, time, wall time and disk space."""
    from dpsweep.analysis.power import outlook
    from dpsweep.planning.device import GPU, this_machine
    from dpsweep.planning.plan import GPUS, Plan

    study, paths = open_study(study_file)
    here = visible_gpus() if site is None else []
    device = this_machine(here) if site is None else GPU
    chosen = Plan(study, paths, targets or (), read_site_file(site), device)
    counts = [len(here)] if here else GPUS if device is GPU else [os.cpu_count() or 1]
    if here:
        typer.echo(describe(here))
    typer.echo("\n".join([*chosen.lines(gpus or counts), *([] if targets else outlook(study))]))


@app.command()
def doctor(
    site: Annotated[Path, typer.Option("--site", help="the cluster: profiles/slurm/site.yaml")],
    study_file: StudyFile = DEFAULT_STUDY,
    patience: Annotated[
        float, typer.Option("--patience", help="seconds that a job may wait in the queue")
    ] = 120.0,
) -> None:
    """Test every kind of job that a study submits to a cluster, and say how to fix what fails.

    It submits one short job of each kind and leaves none behind.
    """
    from dpsweep.planning.doctor import examine

    study, paths = open_study(study_file)
    settings = read_site_file(site)
    assert settings is not None  # noqa: S101
    tell = logging.getLogger("dpsweep.doctor").info
    found = examine(study, study_file, paths, settings, patience, tell)
    typer.echo("\n".join(found.lines()))
    if not found.healthy:
        sys.exit(1)


@app.command()
def status(
    study_file: StudyFile = DEFAULT_STUDY,
    site: SiteFile = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="list failures with their reason and log")
    ] = False,
) -> None:
    """Show progress, failures, the cost so far and the time left."""
    from dpsweep.planning.device import GPU, this_machine
    from dpsweep.planning.failures import summary
    from dpsweep.planning.status import Status

    study, paths = open_study(study_file)
    here = visible_gpus() if site is None else []
    device = this_machine(here) if site is None else GPU
    state = Status(study, paths, site=read_site_file(site), device=device)
    if not failed:
        typer.echo("\n".join(state.lines(len(here))))
        if here:
            typer.echo(describe(here))
        return
    failures = state.failures()
    typer.echo(
        "\n".join(summary(failures, "the same command again")) if failures else "No job has failed."
    )
