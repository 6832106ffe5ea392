"""The command line: one command a stage, all of them called by the workflow's rules.

A problem that the reader can mend (a study that does not fit, a missing file, a full disk) ends
in one message and exit status 1; anything else keeps its traceback.
"""

import contextlib
import logging
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpsweep import gpus as machine
from dpsweep.errors import DpsweepError
from dpsweep.planning.outputs import NormsKey, Output, Outputs
from dpsweep.planning.provenance import Making, explain, making, problems
from dpsweep.study import Cell, Study, StudyError, load_study
from dpsweep.study.cells import number
from dpsweep.study.commands import DEFAULT_STUDY, make_command
from dpsweep.study.messages import pick
from dpsweep.study.paths import Paths

if TYPE_CHECKING:
    from collections.abc import Callable

    from dpsweep.planning.cluster import Site, Stage

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Hyperparameters for differentially private deep transfer learning, stage by stage.",
)

# For the timing breakdown of a job: when it started (see `dpsweep.preload`).
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
    typer.Option("--partial", help="draw what is there, in the results folder's partial/"),
]
# How many problems fit a terminal.
_SHOWN = 20
SiteFile = Annotated[
    Path | None,
    typer.Option(
        "--site", help="file like profiles/slurm/site.yaml (- for stdin), for estimates of time"
    ),
]


def _open(study_file: Path, partial: bool = False) -> tuple[Study, Paths]:
    study = load_study(study_file)
    return study, Paths(Path(study.results), partial)


def _cells(study: Study, problem: str) -> list[Cell]:
    pick("problem", problem, study.problems)
    return study.problem_cells(problem)


def _making(paths: Paths, output: Output) -> contextlib.AbstractContextManager[Making | None]:
    """Leave what an output was made from; a partial drawing is nothing to rely on."""
    return contextlib.nullcontext() if paths.partial else making(paths, output)


def _read_site(site_file: Path | None) -> "Site | None":
    if site_file is None:
        return None
    import yaml

    from dpsweep.planning.cluster import read_site

    piped = str(site_file) == "-"
    content = yaml.safe_load(sys.stdin if piped else site_file.read_text(encoding="utf-8"))
    return read_site((content or {}).get("slurm", {}), str(site_file))


def _taken_gpu(
    study: Study, stage: "Stage", problem: str, epochs: int
) -> contextlib.AbstractContextManager[machine.Gpu | None]:
    """Wait for a GPU of this machine, or for seats of one, where the workflow offers any."""
    from dpsweep.planning.cluster import Jobs

    jobs = Jobs(study, None, machine.offered())
    return machine.taken_gpu(jobs.gpu_seats(stage, problem, epochs))


@app.command()
def check(
    study_file: StudyFile = DEFAULT_STUDY,
    noise: Annotated[
        bool,
        typer.Option("--noise", help="what missing tails of the noise cost; calibrates if needed"),
    ] = False,
    seconds: Annotated[
        float,
        typer.Option(help="for trying a first step of every network; 0 looks at no network"),
    ] = 20.0,
) -> None:
    """Check a study, its local data and its networks, and say how large it is."""
    from dpsweep.check import check as check_study

    study, paths = _open(study_file)
    if noise:
        _check_noise(study, paths)
        return
    typer.echo(f"{study_file}: {study.title}")
    for line in check_study(study, paths, seconds):
        typer.echo(line)


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
        typer.Option(help="of the extended study; images take two, the weaker one first"),
    ] = None,
    input_column: Annotated[str | None, typer.Option(help="of images or texts")] = None,
    label_column: Annotated[str | None, typer.Option(help="of labels")] = None,
    configuration: Annotated[
        str | None, typer.Option(help="of a hub dataset that has several")
    ] = None,
    extends: Annotated[Path, typer.Option(help="the study to extend")] = DEFAULT_STUDY,
) -> None:
    """Look at a dataset and write a first study of it."""
    from dpsweep.data import look
    from dpsweep.new import new_study

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
def prepare_dataset(name: str, study_file: StudyFile = DEFAULT_STUDY) -> None:
    """Write a dataset's memory-mapped arrays and metadata."""
    from dpsweep.data.prepare import prepare

    study, paths = _open(study_file)
    dataset = pick("dataset", name, study.datasets)
    tokenizer = None if dataset.tokenizer is None else paths.tokenizer(dataset.tokenizer)
    with making(paths, Outputs(study, paths).dataset(name)):
        prepare(name, dataset, paths.dataset(name), tokenizer)


@app.command()
def prepare_tokenizer(backbone: str, study_file: StudyFile = DEFAULT_STUDY) -> None:
    """Fetch, copy or train the tokenizer of a backbone that reads text."""
    from dpsweep.data.tokenizer import prepare

    study, paths = _open(study_file)
    chosen = pick("backbone", backbone, study.backbones)
    with making(paths, Outputs(study, paths).tokenizer(backbone)):
        prepare(backbone, chosen, study.datasets, paths.tokenizer(backbone))


@app.command()
def prepare_backbone(name: str, study_file: StudyFile = DEFAULT_STUDY) -> None:
    """Fetch, copy or pretrain a backbone's weights."""
    import torch

    from dpsweep.models.prepare import prepare

    study, paths = _open(study_file)
    # Weights depend on it in their last digits, and their checksum is a part of every trial's key.
    torch.set_num_threads(study.training.threads)
    backbone = pick("backbone", name, study.backbones)
    with making(paths, Outputs(study, paths).backbone(name)):
        prepare(name, backbone, paths)


@app.command()
def compute_features(dataset: str, backbone: str, study_file: StudyFile = DEFAULT_STUDY) -> None:
    """Compute the features of a dataset that heads train on.

    SIGTERM and SIGUSR1 end it with saved state, as they end `train`.
    """
    from dpsweep.study.cells import FeatureSource
    from dpsweep.training.features import compute_features as compute
    from dpsweep.training.interruption import watched
    from dpsweep.training.offline import refuse_network

    study, paths = _open(study_file)
    chosen = FeatureSource(dataset, backbone)
    if chosen not in study.feature_sources():
        known = ", ".join(" ".join(each) for each in study.feature_sources())
        raise StudyError(
            f"{study_file}: found no head that trains on {' '.join(chosen)}; allowed: {known or 'none'}"
        )
    refuse_network()
    output = Outputs(study, paths).features(chosen)
    with machine.taken_gpu(machine.SEATS), making(paths, output), watched():
        compute(study, paths, chosen)


@app.command()
def calibrate(
    dataset: str,
    epsilon: float,
    epochs: int,
    batch_size: Annotated[str, typer.Argument(help="examples, or full")],
    study_file: StudyFile = DEFAULT_STUDY,
) -> None:
    """Find the noise multiplier of one (dataset, epsilon, epochs, batch size)."""
    from dpsweep.privacy import calibrate as calibrate_noise
    from dpsweep.privacy.stored import write_calibration
    from dpsweep.study.cells import BatchSize

    study, paths = _open(study_file)
    train_size = pick("dataset", dataset, study.datasets).train_size
    if batch_size != "full" and not (batch_size.isdecimal() and 1 <= int(batch_size) <= train_size):
        raise StudyError(f"batch size: found {batch_size}; allowed: full, or 1 to {train_size}")
    batch: BatchSize = "full" if batch_size == "full" else int(batch_size)
    with making(paths, Outputs(study, paths).noise(dataset, epsilon, epochs, batch)):
        calibration = calibrate_noise(
            epsilon,
            study.privacy.delta,
            study.train_size(dataset),
            study.numeric_batch_size(dataset, batch),
            study.steps(dataset, epochs, batch),
            check_with_opacus=study.privacy.check_with_opacus,
        )
        write_calibration(paths.noise(dataset, epsilon, epochs, batch), calibration)


@app.command()
def train(problem: str, cell: str, study_file: StudyFile = DEFAULT_STUDY) -> None:
    """Train a cell: tune the learning rate, repeat the best, write the trials.

    SIGTERM and SIGUSR1 end it with saved state (see `dpsweep.training.interruption`).
    """
    from dpsweep.training.cell import run_cell
    from dpsweep.training.interruption import watched
    from dpsweep.training.offline import refuse_network

    study, paths = _open(study_file)
    chosen = pick("cell", cell, {each.name: each for each in _cells(study, problem)})
    refuse_network()
    output = Outputs(study, paths).cell(chosen)
    with (
        _taken_gpu(study, "train", problem, chosen.epochs),
        making(paths, output) as job,
        watched(),
    ):
        run_cell(study, paths, chosen, started=STARTED, progress=job.note)


@app.command()
def gradient_norms(
    problem: str,
    epsilon: float,
    epochs: int,
    clipping_bound: str,
    study_file: StudyFile = DEFAULT_STUDY,
) -> None:
    """Measure per-example gradient norms of the best trial of one (epsilon, epochs, C).

    SIGTERM and SIGUSR1 end it as they end `train`: between two steps, or between two epochs.
    """
    from dpsweep.training.gradient_norms import measure_gradient_norms
    from dpsweep.training.interruption import watched
    from dpsweep.training.offline import refuse_network

    study, paths = _open(study_file)
    keys = dict.fromkeys(map(NormsKey.of, _cells(study, problem)))
    name = f"eps{number(epsilon)}_epochs{epochs}_C{clipping_bound}"
    key = pick("gradient norms", name, {paths.gradient_norms(*key).stem: key for key in keys})
    refuse_network()
    with (
        _taken_gpu(study, "gradient_norms", problem, key.epochs),
        making(paths, Outputs(study, paths).gradient_norms(key)),
        watched(),
    ):
        measure_gradient_norms(study, paths, *key)


@app.command()
def audit_setting(setting: str, study_file: StudyFile = DEFAULT_STUDY) -> None:
    """Train once with canaries and measure what is given away, for one setting of the audit."""
    from dpsweep.training.audit import measure_setting
    from dpsweep.training.offline import refuse_network

    study, paths = _open(study_file)
    cell = pick("setting of the audit", setting, {each.name: each for each in study.audit_cells()})
    assert study.audit is not None  # noqa: S101 (it has settings)
    refuse_network()
    with (
        _taken_gpu(study, "train", cell.problem, cell.epochs),
        making(paths, Outputs(study, paths).audited(cell)),
    ):
        measure_setting(study, paths, study.audit, cell)


@app.command()
def audit_evidence(study_file: StudyFile = DEFAULT_STUDY) -> None:
    """Gather what the audit found: numbers, figure and table."""
    from dpsweep.figures.audit import draw_audit
    from dpsweep.tables.audit import write_audit

    study, paths = _open(study_file)
    with making(paths, Outputs(study, paths).audit()):
        draw_audit(study, paths)
        write_audit(study, paths)


@app.command()
def audit(study_file: StudyFile = DEFAULT_STUDY) -> None:
    """Say what the audit found; fail if a setting gives away more than it claims."""
    from dpsweep.analysis.audit import check_audit, load_audit, verdict

    found = load_audit(*_open(study_file))
    check_audit(found)
    typer.echo(verdict(found))


@app.command()
def aggregate(problem: str, study_file: StudyFile = DEFAULT_STUDY) -> None:
    """Gather all trials of a problem in one table."""
    from dpsweep.analysis.frames import write_problem

    study, paths = _open(study_file)
    pick("problem", problem, study.problems)
    with making(paths, Outputs(study, paths).problem(problem)):
        write_problem(study, paths, problem)


@app.command()
def figure(target: str, study_file: StudyFile = DEFAULT_STUDY, partial: Partial = False) -> None:
    """Draw a figure."""
    from dpsweep.figures import draw

    study, paths = _open(study_file, partial)
    pick("figure", target, study.figures)
    with _making(paths, Outputs(study, paths).figure(target)):
        draw(study, paths, target)


@app.command()
def table(target: str, study_file: StudyFile = DEFAULT_STUDY, partial: Partial = False) -> None:
    """Write a table."""
    from dpsweep.tables import write

    study, paths = _open(study_file, partial)
    pick("table", target, study.tables)
    with _making(paths, Outputs(study, paths).table(target)):
        write(study, paths, target)


@app.command()
def explore(study_file: StudyFile = DEFAULT_STUDY, partial: Partial = False) -> None:
    """Write a page to explore all cells and trials with."""
    from dpsweep.report import write_explore

    study, paths = _open(study_file, partial)
    with _making(paths, Outputs(study, Paths(paths.results)).explore()):
        write_explore(study, study_file, paths)


@app.command()
def report(study_file: StudyFile = DEFAULT_STUDY, partial: Partial = False) -> None:
    """Write the report: of everything that the study asks for, or it fails and says what lacks."""
    from dpsweep.report import write

    study, paths = _open(study_file, partial)
    outputs = Outputs(study, Paths(paths.results))
    parts = [output for output in outputs.every() if output.files != (paths.report,)]
    lacking = explain(problems(paths, parts))
    if lacking and not partial:
        raise StudyError(
            "\n  ".join([f"{study_file} asks for what is not there:", *lacking[:_SHOWN]])
            + "\n(dpsweep report --partial reports what is there)",
            remake=("all",),
        )
    with _making(paths, outputs.report()):
        write(study, study_file, paths, lacking)


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
        list[int] | None, typer.Option("--gpus", min=1, help="for the wall time; may be repeated")
    ] = None,
) -> None:
    """Say what is missing of some targets, and estimate trials, GPU hours, wall time and disk."""
    from dpsweep.planning.plan import GPUS, Plan

    study, paths = _open(study_file)
    settings = _read_site(site)
    chosen = Plan(study, paths, targets or (), settings)
    here = [] if settings else machine.visible_gpus()
    if here:
        typer.echo(machine.describe(here))
    typer.echo("\n".join(chosen.lines(gpus or ([len(here)] if here else GPUS))))


@app.command()
def doctor(
    site: Annotated[Path, typer.Option("--site", help="the cluster: profiles/slurm/site.yaml")],
    study_file: StudyFile = DEFAULT_STUDY,
    patience: Annotated[
        float, typer.Option("--patience", help="seconds that a job may wait in the queue")
    ] = 120.0,
) -> None:
    """Try every kind of job that a study sends to a cluster, and say what to change.

    One short job of each kind is submitted; none is left.
    """
    from dpsweep.planning.doctor import examine

    study, paths = _open(study_file)
    settings = _read_site(site)
    assert settings is not None  # noqa: S101
    tell = logging.getLogger("dpsweep.doctor").info
    found = examine(study, study_file, paths, settings, patience, tell)
    typer.echo("\n".join(found.lines()))
    if not found.healthy:
        sys.exit(1)


@app.command(hidden=True)
def probe(
    steps: Path,
    gpu: Annotated[bool, typer.Option("--gpu", help="compute, and wait for a signal")] = False,
    study_file: StudyFile = DEFAULT_STUDY,
) -> None:
    """Write down what works in this process; `doctor` calls it in jobs."""
    from dpsweep.planning.doctor import code, write_step

    write_step(steps, "command", code())
    if not gpu:
        return
    from dpsweep.training.interruption import watched
    from dpsweep.training.probe import try_gpu, wait_for_signal

    study, _ = _open(study_file)
    with watched():
        found = try_gpu(study.training.precision, study.training.engine)
        write_step(steps, "gpu", found.text, gigabytes=found.gigabytes)
        write_step(steps, "ready", "")
        stop = wait_for_signal()
        write_step(steps, "signal", "SIGUSR1")
        raise stop


@app.command()
def status(
    study_file: StudyFile = DEFAULT_STUDY,
    site: SiteFile = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="list what failed: reason and log")
    ] = False,
) -> None:
    """Say what is done, running, failed and waiting, what it has cost and how long is left."""
    from dpsweep.planning.failures import summary
    from dpsweep.planning.status import Status

    study, paths = _open(study_file)
    settings = _read_site(site)
    state = Status(study, paths, site=settings)
    if not failed:
        here = [] if settings else machine.visible_gpus()
        typer.echo("\n".join(state.lines(len(here))))
        if here:
            typer.echo(machine.describe(here))
        return
    failures = state.failures()
    typer.echo(
        "\n".join(summary(failures, "the same command again")) if failures else "No job has failed."
    )


def main(run: "Callable[..., None]" = app) -> None:
    """Run the command line."""
    # Other libraries speak up from warnings on.
    # Some of them set up logging of their own when they are imported.
    logging.basicConfig(
        format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr, force=True
    )
    logging.getLogger("dpsweep").setLevel(logging.INFO)
    called: dict[str, Path] = {}
    try:
        run(prog_name="dpsweep", obj=called)
    except DpsweepError as error:
        message = f"error: {error}"
        if error.remake:
            command = make_command(called.get("study", DEFAULT_STUDY), error.remake)
            message += f"\nTo make it again:\n  {command}"
        sys.exit(message)
    except OSError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
