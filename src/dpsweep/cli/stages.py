"""One command for each stage; the workflow's rules call only these."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import write_json
from dpsweep.cli import options
from dpsweep.cli.options import FoundStudy, Partial, Planned, StudyFile, StudyName
from dpsweep.planning.outputs import NormsKey, Outputs, pick_cell
from dpsweep.release import planned_cells, refuse_unaccounted
from dpsweep.study import Paths, Study, StudyError, fingerprints
from dpsweep.study.cells import BatchSize, FeatureSource, number
from dpsweep.study.load import DEFAULT_STUDY
from dpsweep.study.messages import pick

app = typer.Typer()

# The number of outputs that fit a terminal.
_SHOWN = 20


@app.command()
def prepare_dataset(
    name: str, study_file: StudyFile = DEFAULT_STUDY, planned: Planned = None
) -> None:
    """Write a dataset's memory-mapped arrays and metadata."""
    from dpsweep.data.prepare import prepare

    study, paths = options.open_study(study_file)
    dataset = options.check_planned(
        planned, lambda: pick("dataset", name, study.datasets), fingerprints.source_fingerprint
    )
    tokenizer = None if dataset.tokenizer is None else paths.tokenizer(dataset.tokenizer)
    if dataset.tokenizer is not None:
        fingerprints.check_settings(study, paths, "tokenizer", dataset.tokenizer)
    prepare(name, dataset, paths.dataset(name), tokenizer)
    fingerprints.note_settings(study, paths, "dataset", name)


@app.command()
def prepare_tokenizer(
    backbone: str, study_file: StudyFile = DEFAULT_STUDY, planned: Planned = None
) -> None:
    """Fetch, copy or train the tokenizer of a backbone that reads text."""
    from dpsweep.data.prepare import prepare_tokenizer as prepare

    study, paths = options.open_study(study_file)
    chosen = options.check_planned(
        planned,
        lambda: pick("backbone", backbone, study.backbones),
        lambda _: fingerprints.tokenizer_fingerprint(study, backbone),
    )
    prepare(backbone, chosen, study.datasets, paths.tokenizer(backbone))
    fingerprints.note_settings(study, paths, "tokenizer", backbone)


@app.command()
def prepare_backbone(
    name: str, study_file: StudyFile = DEFAULT_STUDY, planned: Planned = None
) -> None:
    """Fetch, copy or pretrain a backbone's weights."""
    import torch

    from dpsweep.models.prepare import prepare

    study, paths = options.open_study(study_file)
    # The number of threads changes the last digits of weights; their checksum is part of every trial's key.
    torch.set_num_threads(study.training.threads)
    backbone = options.check_planned(
        planned, lambda: pick("backbone", name, study.backbones), fingerprints.source_fingerprint
    )
    if backbone.reads_with is not None:
        fingerprints.check_settings(study, paths, "tokenizer", name)
    if public := backbone.made_from.get("weights"):
        fingerprints.check_settings(study, paths, "dataset", public)
    prepare(name, backbone, paths)
    fingerprints.note_settings(study, paths, "backbone", name)


@app.command()
def compute_features(
    dataset: str, backbone: str, study_file: StudyFile = DEFAULT_STUDY, planned: Planned = None
) -> None:
    """Compute the features of a dataset for training heads.

    SIGTERM and SIGUSR1 end it with saved state, as they end `train`.
    """
    from dpsweep.training.features import compute_features as compute

    study, paths = options.open_study(study_file)
    sources = {" ".join(each): each for each in study.feature_sources()}

    def settings(source: FeatureSource) -> str:
        return fingerprints.section_fingerprint(study.backbones[source.backbone].features)

    chosen = options.check_planned(
        planned, lambda: pick("features", f"{dataset} {backbone}", sources), settings
    )
    with options.training():
        compute(study, paths, chosen)
    fingerprints.write_settings(paths.features(*chosen) / "metadata.json", settings(chosen))


@app.command()
def calibrate(
    dataset: str,
    epsilon: float,
    epochs: int,
    batch_size: Annotated[str, typer.Argument(help="examples, or full")],
    study_file: StudyFile = DEFAULT_STUDY,
    planned: Planned = None,
) -> None:
    """Find the noise multiplier of one (dataset, epsilon, epochs, batch size)."""
    from dpsweep.privacy.calibration import calibrate_sampling
    from dpsweep.privacy.noise import write_calibration

    study, paths = options.open_study(study_file)
    section = options.check_planned(
        planned,
        lambda: pick("dataset", dataset, study.datasets),
        lambda _: study.settings_hash.noise(dataset),
    )
    train_size = section.train_size
    if batch_size != "full" and not (batch_size.isdecimal() and 1 <= int(batch_size) <= train_size):
        raise StudyError(f"batch size: found {batch_size}; allowed: full, or 1 to {train_size}")
    batch: BatchSize = "full" if batch_size == "full" else int(batch_size)
    calibration = calibrate_sampling(
        epsilon,
        study.privacy.delta,
        study.sampling(dataset, epochs, batch),
        check_with_opacus=study.privacy.check_with_opacus,
    )
    write_calibration(paths.noise(study, dataset, epsilon, epochs, batch), calibration)


@app.command()
def train(
    problem: str, cell: str, study_file: StudyFile = DEFAULT_STUDY, planned: Planned = None
) -> None:
    """Train a cell: tune the learning rate, repeat the best, write the trials.

    SIGTERM and SIGUSR1 end it with saved state (see `dpsweep.training.processes`).
    """
    from dpsweep.training.cell import run_cell
    from dpsweep.training.processes import launch

    study, paths = options.open_study(study_file)
    chosen = options.check_planned(
        planned, lambda: pick_cell(study, problem, cell), study.settings_hash.cell
    )
    refuse_unaccounted(study, problem)
    note = partial(write_json, paths.cell_timing(study, chosen))
    gpus = study.gpus(problem)
    with options.training(gpus):
        launch(gpus, run_cell, study, paths, chosen, options.STARTED, note)


@app.command()
def gradient_norms(
    problem: str,
    epsilon: float,
    epochs: int,
    clipping_bound: str,
    study_file: StudyFile = DEFAULT_STUDY,
    planned: Planned = None,
) -> None:
    """Measure per-example gradient norms of the best trial of one (epsilon, epochs, C).

    SIGTERM and SIGUSR1 end it as they end `train`: between two steps, or between two epochs.
    """
    from dpsweep.training.gradient_norms import measure_gradient_norms
    from dpsweep.training.processes import launch

    study, paths = options.open_study(study_file)

    def find() -> NormsKey:
        pick("problem", problem, study.problems)
        name = f"eps{number(epsilon)}_epochs{epochs}_C{clipping_bound}"
        return pick("gradient norms", name, Outputs(study, paths).norms_by_name(problem))

    key = options.check_planned(planned, find, lambda key: study.settings_hash.gradient_norms(*key))
    refuse_unaccounted(study, problem)
    gpus = study.gpus(problem)
    with options.training(gpus):
        launch(gpus, measure_gradient_norms, study, paths, *key)


@app.command()
def theory(
    problem: str, cell: str, study_file: StudyFile = DEFAULT_STUDY, planned: Planned = None
) -> None:
    """Measure how the gradients of a cell's best trial overlap. The output is not private.

    SIGTERM and SIGUSR1 end it as they end `train`: between two steps, or between two epochs.
    """
    from dpsweep.training.gradient_norms import measure_overlap

    study, paths = options.open_study(study_file)
    chosen = options.check_planned(
        planned, lambda: pick_cell(study, problem, cell), study.settings_hash.theory
    )
    refuse_unaccounted(study, problem)
    with options.training():
        measure_overlap(study, paths, chosen)


@app.command()
def audit_setting(
    setting: str, study_file: StudyFile = DEFAULT_STUDY, planned: Planned = None
) -> None:
    """Train with canaries and measure what leaks, for one setting of the audit.

    SIGTERM and SIGUSR1 end it between two steps. Nothing is saved: the next call starts again.
    """
    from dpsweep.training.canaries import measure_setting

    study, paths = options.open_study(study_file)
    cells = {each.name: each for each in study.audit_cells()}
    cell = options.check_planned(
        planned,
        lambda: pick("setting of the audit", setting, cells),
        lambda _: fingerprints.audit_fingerprint(study),
    )
    assert study.audit is not None  # noqa: S101 (it has settings)
    refuse_unaccounted(study, study.sweeps[study.audit.sweep].problem.name)
    with options.training():
        measure_setting(study, paths, study.audit, cell)
    fingerprints.write_settings(paths.audited(cell), fingerprints.audit_fingerprint(study))


@app.command()
def audit_evidence(study_file: StudyFile = DEFAULT_STUDY, planned: Planned = None) -> None:
    """Collect the results of the audit: numbers, figure and table."""
    from dpsweep.figures.audit import write_audit

    study, paths = options.open_study(study_file)
    options.check_planned(planned, lambda: study, fingerprints.report_fingerprint)
    write_audit(study, paths)


@app.command()
def audit(study_file: StudyFile = DEFAULT_STUDY) -> None:
    """Print the verdict of the audit; fail if a setting leaks more than it claims."""
    from dpsweep.figures.audit import check_audit, load_audit, verdict

    study, paths = options.open_study(study_file)
    found = load_audit(study, paths)
    check_audit(found)
    typer.echo(verdict(found))


@app.command()
def aggregate(problem: str, study_file: StudyFile = DEFAULT_STUDY, planned: Planned = None) -> None:
    """Collect all trials of a problem in one table."""
    from dpsweep.analysis.frames import write_problem

    study, paths = options.open_study(study_file)
    options.check_planned(
        planned,
        lambda: pick("problem", problem, study.problems),
        lambda _: fingerprints.problem_fingerprint(study, problem),
    )
    write_problem(study, paths, problem)


@app.command()
def figure(
    target: str,
    study_file: StudyFile = DEFAULT_STUDY,
    partial: Partial = False,
    planned: Planned = None,
) -> None:
    """Draw a figure."""
    from dpsweep.figures import draw

    study, paths = options.open_study(study_file, partial)
    options.check_planned(
        planned,
        lambda: pick("figure", target, study.figures),
        lambda found: fingerprints.target_fingerprint(study, found),
    )
    draw(study, paths, target)


@app.command()
def table(
    target: str,
    study_file: StudyFile = DEFAULT_STUDY,
    partial: Partial = False,
    planned: Planned = None,
) -> None:
    """Write a table."""
    from dpsweep.tables import write

    study, paths = options.open_study(study_file, partial)
    options.check_planned(
        planned,
        lambda: pick("table", target, study.tables),
        lambda found: fingerprints.target_fingerprint(study, found),
    )
    write(study, paths, target)


@app.command()
def explore(
    study_name: StudyName = None,
    study_file: FoundStudy = None,
    partial: Partial = False,
    planned: Planned = None,
) -> None:
    """Write an interactive page with all cells and trials."""
    from dpsweep.report import write_explore

    file, study, whole = options.find_study(study_name or study_file)
    options.check_planned(planned, lambda: study, fingerprints.report_fingerprint)
    write_explore(study, file, Paths(whole.results, partial))


@app.command()
def report(
    study_name: StudyName = None,
    study_file: FoundStudy = None,
    partial: Partial = False,
    planned: Planned = None,
) -> None:
    """Write the report; if something is missing, fail and list it.

    With --partial, figures, tables and pages are drawn from the results so far, also while the study runs.
    """
    from dpsweep.report import write

    file, study, whole = options.find_study(study_name or study_file)
    options.check_planned(planned, lambda: study, fingerprints.report_fingerprint)
    paths, outputs = Paths(whole.results, partial), Outputs(study, whole)
    cells = planned_cells(study, ())
    # Without a cell to train, nothing but the releases is reported.
    parts = [*outputs.trained(cells), *outputs.report().inputs] if cells else []
    lacking = [f"{part} is missing" for part in parts if not part.exists()]
    if lacking and not partial:
        said = [f"{file}: the report needs outputs that are missing:", *lacking[:_SHOWN]]
        hint = "(dpsweep report --partial reports what is there)"
        raise StudyError("\n  ".join(said) + f"\n{hint}", remake=("all",))
    if partial:
        for line in _draw_what_is_there(study, file, paths):
            typer.echo(line, err=True)
    write(study, file, paths, lacking)
    if partial:
        typer.echo(f"Report: {paths.report.resolve()}")


def _draw_what_is_there(study: Study, study_file: Path, paths: Paths) -> Iterator[str]:
    """Draw all figures and tables, and the page to explore; yield the reason for each that fails."""
    from dpsweep.figures import draw
    from dpsweep.report import write_explore
    from dpsweep.tables import write

    drawings = [(draw, name) for name in study.figures] + [(write, name) for name in study.tables]
    for make, name in drawings:
        try:
            make(study, paths, name)
        except DpsweepError as error:
            yield f"{name}: {error}"
    write_explore(study, study_file, paths)


@app.command()
def check_machine(
    written: Annotated[
        Path, typer.Argument(metavar="FILE", parser=options.path, help="file for the result")
    ],
    study_file: StudyFile = DEFAULT_STUDY,
) -> None:
    """Compute as in training; in a job of Slurm, also test the signal before its time limit."""
    from dpsweep.base.gpus import taken_gpus
    from dpsweep.training.device import check_machine as check
    from dpsweep.training.processes import watched

    study, _ = options.open_study(study_file)
    with taken_gpus(1), watched():
        check(study.training, written)
