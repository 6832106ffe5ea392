"""Releases: training with secret randomness, and a folder that is created completely or not at all."""

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from dpsweep.base import files
from dpsweep.data.prepared import DatasetError, PreparedDataset, Resize, read_metadata
from dpsweep.data.texts import Tokenizer
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.models.build import build_head, build_model, linear_head
from dpsweep.privacy import Calibration
from dpsweep.privacy.calibration import calibrate_sampling
from dpsweep.privacy.tuning import (
    TuningNoise,
    calibrate_tuning,
    draw_trial_count,
    trial_count_probabilities,
)
from dpsweep.release import CARD, CERTIFICATE, TOKENIZER, ReleaseError
from dpsweep.release.certificate import (
    Candidate,
    Certificate,
    Network,
    ReleasedFeatures,
    ReleasedModel,
    ReleasePlan,
    TestSet,
    best_attacks,
    certify_tuning,
    epsilon_by_pld,
)
from dpsweep.release.files import model_card, save_parameters, stated, stated_tap
from dpsweep.release.ledger import Ledger, open_ledger, refuse_beyond_budget, released_together
from dpsweep.study import Paths, Study
from dpsweep.study.datasets import origins, shares_examples
from dpsweep.study.networks import HeadOnly
from dpsweep.training.cell import check_size
from dpsweep.training.context import TrialContext, load_trainable
from dpsweep.training.features import FeatureRun, open_inputs
from dpsweep.training.processes import launch, on_first
from dpsweep.training.randomness import new_secret, numpy_stream
from dpsweep.training.store import TrialStore, final_parameters
from dpsweep.training.trial import TrialSpec, evaluate, specify, train_trial

log = logging.getLogger(__name__)

Arrays = dict[str, np.ndarray[Any, Any]]
Choice = TypeVar("Choice")
Model = TypeVar("Model")
_RARE = 1e-4


@dataclass(frozen=True)
class TrainedModel:
    """One trial of a release."""

    candidate: Candidate
    spec: TrialSpec
    noise: Calibration
    parameters: Arrays
    """The trained parameters, by their names in the network."""
    record: dict[str, Any]
    """All measurements of the trial; most of them are not differentially private (see `certificate`)."""


def tuning_noise(study: Study) -> TuningNoise:
    """Return the noise of all candidates of a release with ``selection: private``.

    Raises:
        CalibrationError: no base mechanism meets the total epsilon.
        ReleaseError: the held-out part is too small for the noise of its score.
    """
    plan = ReleasePlan(study)
    release = plan.release
    noise = calibrate_tuning(
        release.epsilon,
        study.privacy.delta,
        release.mean_trials,
        release.shape,
        [plan.sampling(cell) for cell, _ in plan.candidates],
    )
    # The number of right answers on n examples has a standard deviation of at most sqrt(n) / 2.
    if noise.score_noise > math.sqrt(plan.split.held_out) / 2:
        needed = math.ceil((2 * noise.score_noise) ** 2)
        raise ReleaseError(
            f"release.holdout_share: found {release.holdout_share:g}, which holds out "
            f"{plan.split.held_out} {plan.split.counted}. Scores need noise of {noise.score_noise:.1f} right "
            f"answers, more than the sampling error of an accuracy on so few; allowed: a share that holds "
            f"out at least {needed} of {plan.split.examples}, a larger epsilon, or selection: fixed"
        )
    return noise


def fixed_noise(plan: ReleasePlan) -> Calibration:
    """Return the noise of the only setting of a release with ``selection: fixed``.

    Raises:
        CalibrationError: no noise gives the total epsilon.
    """
    ((cell, _),) = plan.candidates
    return calibrate_sampling(plan.release.epsilon, plan.study.privacy.delta, plan.sampling(cell))


def train_release(study: Study, paths: Paths) -> tuple[TrainedModel, TuningNoise | None, float]:
    """Train the model of a release.

    Returns:
        The model, the noise of its tuning (None for a fixed setting), and its score.

    Raises:
        CalibrationError: no noise gives the total epsilon.
        CellError: the prepared data has another size than in the study.
        BackboneError: the sweep reads features, and the network's head is not one linear layer.
        DatasetError: the dataset is not prepared.
        ReleaseError: see `tuning_noise`.
    """
    torch.set_num_threads(study.training.threads)
    plan = ReleasePlan(study)
    release, parts, candidates = plan.release, plan.sweep, plan.candidates
    tuning = tuning_noise(study) if release.selection == "private" else None
    data = open_inputs(study, paths, parts.problem.name)
    backbone = PreparedBackbone.open(paths.backbone(parts.backbone))
    prefix = _head_prefix(data, backbone) if plan.features is None else ""
    context = TrialContext(data, backbone, study.methods[parts.method], release.held_out)

    def train(candidate: Candidate) -> tuple[TrainedModel, int]:
        cell, rate = candidate
        own = tuning.calibration(plan.sampling(cell)) if tuning else fixed_noise(plan)
        check_size(own, context, data)
        spec = specify(study, cell, own, data, backbone, context.device, rate, seed=1)
        spec = replace(spec, holdout=plan.split.held_out)
        trained, parameters, right = train_and_score(spec, context, on_first(new_secret))
        named = {f"{prefix}{name}": each for name, each in parameters.items()}
        return TrainedModel(candidate, spec, own, named, trained), right

    if tuning is None:
        with _silence():
            return train(candidates[0])[0], None, math.nan
    probabilities = trial_count_probabilities(tuning.mean_trials, tuning.shape, 100_000)
    most = int(np.searchsorted(np.cumsum(probabilities), 1 - _RARE)) + 1
    log.info(
        "a secret number of trials: %g in the mean, more than %d with probability %g",
        *(tuning.mean_trials, most, _RARE),
    )
    random = numpy_stream("selection", secret=on_first(new_secret))
    with _silence():
        model, score = select_privately(candidates, train, tuning, random)
    return model, tuning, score


def select_privately(
    candidates: Sequence[Choice],
    train: Callable[[Choice], tuple[Model, int]],
    noise: TuningNoise,
    random: np.random.Generator,
) -> tuple[Model, float]:
    """Train a random number of random candidates, and return the one with the highest score.

    The number of trials, their settings, scores and parameters stay in the memory of one process. A
    killed process leaves nothing on disk, and the next one starts with new randomness.

    Args:
        candidates: equally likely in each trial; the list does not depend on the data.
        train: trains a candidate with its own randomness, and returns a model and its number of right
            answers on the held-out part.
        noise: mean and shape of the number of trials, and the noise of scores.
        random: its state must be secret.

    Returns:
        The best model, and its score: its number of right answers on the held-out part, plus noise.
    """

    def trials() -> Iterator[tuple[Model, float]]:
        for _ in range(draw_trial_count(noise.mean_trials, noise.shape, random)):
            model, right = train(candidates[int(random.integers(len(candidates)))])
            yield model, right + noise.score_noise * random.standard_normal()

    return max(trials(), key=lambda trial: trial[1])


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress logs and warnings: those on batch sizes and memory would reveal the secret trials."""
    with warnings.catch_warnings(action="ignore"):
        before = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


def _head_prefix(data: PreparedDataset, backbone: PreparedBackbone) -> str:
    """Return the prefix of the head's parameter names; empty if the whole network is in the loop."""
    if data.metadata.features is None:
        return ""
    network = build_model(
        backbone.folder, HeadOnly(kind="head"), len(data.metadata.classes), seed=0
    )
    return f"{linear_head(network)}."


def train_and_score(
    spec: TrialSpec, context: TrialContext, secret: bytes
) -> tuple[dict[str, Any], Arrays, int]:
    """Train once, in memory.

    Args:
        spec: the trial.
        context: its data and backbone.
        secret: for its sampling and noise.

    Returns:
        Its record, its trained parameters by name, and its number of right answers on the held-out part.
        A unit is one answer, whatever the number of its rows: right if more than half of them are. So an
        added or removed unit changes the number by at most 1.
    """
    trial, epochs = train_trial(spec, context, None, math.inf, secret)
    parameters = final_parameters(spec.epochs, epochs)
    right = 0
    if spec.holdout:
        model = context.model(spec.seed)
        load_trainable(model, {name: torch.from_numpy(each) for name, each in parameters.items()})
        found = evaluate(model, context, context.holdout)
        right = round(found.get("unit_accuracy", found["accuracy"]) * context.holdout.protected)
    return trial.record, parameters, right


def check_budget(study: Study, paths: Paths) -> None:
    """Read the ledger, and refuse a release beyond the budget, before its data are prepared.

    Earlier releases are found by where their data come from; `write` also compares checksums.

    Raises:
        ReleaseError: the releases would exceed the budget, or the ledger is damaged.
        CalibrationError: no noise gives the total epsilon.
    """
    if study.release is None or paths.release.exists():
        return
    earlier = Ledger(paths.ledger).released("", origins(ReleasePlan(study).dataset.source))
    if study.budget is not None:
        refuse_beyond_budget(study, earlier, _planned(study))


def _planned(study: Study) -> ReleasedModel:
    """Return the new model's entry of the ledger, but for the fingerprint of its certificate."""
    plan = ReleasePlan(study)
    return ReleasedModel(
        certificate="0" * 64,
        epsilon=plan.release.epsilon,
        delta=study.privacy.delta,
        noise=None if plan.release.selection == "private" else fixed_noise(plan),
        unit=plan.split.unit,
        rows_per_unit=plan.split.rows_per_unit,
    )


def swept_before(study: Study, paths: Paths) -> tuple[list[str], int]:
    """Find training without an account on data that may share examples with the data of a release.

    Epsilon does not cover choices made by it.

    Returns:
        Sweeps of the study with a finished cell, and the number of finished trials in the store, found by the
        checksum of their data, so that trials of former grids count too.
    """
    source = ReleasePlan(study).dataset.source
    shared = {name for name, each in study.datasets.items() if shares_examples(each.source, source)}
    sweeps = [
        name
        for name, sweep in study.sweeps.items()
        if sweep.dataset in shared
        # Former settings count too, because they trained on the same data.
        and any(any(paths.cell(cell).glob("trials*")) for cell in study.sweep_cells(name))
    ]
    read = {each for name in shared for each in _checksums(paths, name)}
    trials = sum(record["spec"]["data"] in read for record in TrialStore(paths.trials).records())
    return sweeps, trials


def _checksums(paths: Paths, dataset: str) -> Iterator[str]:
    """Yield the checksums of a dataset and its features, if they are prepared."""
    for folder in (paths.dataset(dataset), *paths.features(dataset, "").glob("*")):
        with suppress(DatasetError):
            yield read_metadata(folder).checksum


def write_release(study: Study, paths: Paths) -> Path:
    """Train the model of a study's release and write its folder.

    A call waits while another one writes this folder, on any machine that shares the disk. Two calls at
    once would not be private: the call with fewer trials would end first and win.

    Returns:
        The folder.

    Raises:
        CalibrationError: no noise gives the total epsilon.
        CellError: the prepared data has another size than in the study.
        ReleaseError: the folder exists, the held-out part is too small, or the ledger is damaged.
    """
    folder = paths.release
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Before training, this removes the model that a killed call has left without a line in the ledger.
    with _alone(folder), files.folder_beside(folder) as aside:
        _make(study, paths, aside / folder.name)
    return folder


def _make(study: Study, paths: Paths, made: Path) -> None:
    """Train, write the files into the folder ``made``, and move it to its place."""
    folder, plan = paths.release, ReleasePlan(study)
    _refuse_another(folder)
    sweeps, trials = swept_before(study, paths)
    if sweeps or trials:
        log.warning(
            "%s: these sweeps have trained on the same data (%d trials in the store). Epsilon does not cover "
            "choices made by looking at them. The certificate names them",
            ", ".join(sweeps) or "sweeps that are not in the study",
            trials,
        )
    dataset = paths.dataset(plan.sweep.dataset)
    data = read_metadata(dataset).checksum, origins(plan.dataset.source)
    # Before training, check that the ledger can be read and written and that the models can be composed.
    with open_ledger(paths.ledger) as ledger:
        earlier = ledger.released(*data)
    new = _planned(study)
    together = released_together(earlier, new)
    refuse_beyond_budget(study, earlier, new)
    tokenizer = _tokenizer(plan, paths)
    gpus = study.release_gpus(plan.release)
    model, tuning, score = launch(gpus, train_release, study, paths)
    made.mkdir()
    with open_ledger(paths.ledger) as ledger:
        network = _write_network(plan, paths, model, tokenizer, made)
        others = ledger.released(*data)
        if others != earlier:  # another release was made during training
            together = released_together(others, new)
            refuse_beyond_budget(study, others, new)
        certificate = Certificate.model_validate(
            plan.decided()
            | _trained(plan, model, tuning, score)
            | {
                "title": study.title,
                "test_set": _test_set(dataset, model.record.get("unit_accuracy")),
                "earlier_sweeps": sweeps,
                "earlier_trials": trials,
                "releases": together,
                "network": network,
                "files": {name: files.checksum(made / name) for name in network.binary_files},
            }
        )
        content = certificate.model_dump(mode="json")
        files.write_text(made / CARD, model_card(certificate))
        files.write_checked_json(made / CERTIFICATE, content)
        _refuse_another(folder)
        # Add the line first, so that no model exists without a line.
        ledger.add(*data, certificate.in_ledger(files.fingerprint(content)))
        made.replace(folder)
        files.sync_folder(folder.parent)


def _test_set(dataset: Path, unit_accuracy: float | None) -> TestSet:
    data = PreparedDataset.open(dataset)
    counts = np.bincount(data.test_labels)
    return TestSet(
        size=int(counts.sum()),
        largest_class=int(counts.max()),
        units=data.metadata.test_units,
        unit_accuracy=unit_accuracy,
    )


def _trained(
    plan: ReleasePlan, model: TrainedModel, tuning: TuningNoise | None, score: float
) -> dict[str, Any]:
    """Return the fields of a certificate that depend on training."""
    spec, candidates = model.spec, list(map(plan.setting, plan.candidates))
    return {
        "certified_epsilon": tuning.total_epsilon if tuning else model.noise.certified_epsilon,
        "pld_epsilon": epsilon_by_pld(model.noise, tuning),
        "attacks": best_attacks(model.noise, tuning),
        "setting": plan.setting(model.candidate),
        "precision": spec.precision,
        "engine": spec.engine,
        "device": spec.device,
        "noise": model.noise,
        "tuning": certify_tuning(tuning, candidates, score) if tuning else None,
        "test_accuracy": model.record["accuracy"],
        "versions": model.record["versions"],
    }


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock beside a folder; wait for other calls first."""
    path = folder.with_name(f".{folder.name}.lock")
    with files.locked(path, "another call makes the same release"):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _refuse_another(folder: Path) -> None:
    """Raise a `ReleaseError` if the folder exists and is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ReleaseError(
            f"{folder}: exists. A second model of the same data spends epsilon a second time, and no "
            "model can be made again; move the folder away if you mean it"
        )


def _tokenizer(plan: ReleasePlan, paths: Paths) -> Tokenizer | None:
    """Open the tokenizer of a network; return None if the network reads no text."""
    backbone = plan.sweep.backbone
    expected = PreparedBackbone.open(paths.backbone(backbone)).metadata.tokenizer
    if expected is None:
        return None
    tokenizer = Tokenizer.open(paths.tokenizer(backbone))
    if tokenizer.identity != expected:
        raise ReleaseError(
            f"{paths.tokenizer(backbone)}: is not the tokenizer of {paths.backbone(backbone)}; "
            "prepare both again"
        )
    return tokenizer


def _write_network(
    plan: ReleasePlan, paths: Paths, model: TrainedModel, tokenizer: Tokenizer | None, folder: Path
) -> Network:
    """Write both files of parameters and the tokenizer, and return the network of the certificate."""
    sweep = plan.sweep
    data = read_metadata(paths.dataset(sweep.dataset))
    prepared = PreparedBackbone.open(paths.backbone(sweep.backbone))
    backbone = prepared.metadata
    method = plan.study.methods[sweep.method]
    empty = build_model(paths.backbone(sweep.backbone), method, len(data.classes), model.spec.seed)
    trained = {name: torch.from_numpy(each) for name, each in model.parameters.items()}
    save_parameters(empty, trained, folder)
    features = read_features(plan, paths)
    head = build_head(features.width, len(data.classes)) if features else None
    if tokenizer is not None:
        tokenizer.export(folder / TOKENIZER)
    return Network.model_validate(
        {
            "library": backbone.architecture.library,
            "architecture": backbone.architecture.name,
            "arguments": backbone.architecture.arguments,
            "backbone": backbone.checksum,
            "weights": prepared.weights_checksum,
            "classes": list(data.classes),
            "kind": backbone.kind,
            "mean": list(backbone.mean),
            "std": list(backbone.std),
            "shape": list(data.shape),
            "resize": Resize.of(plan.dataset) if backbone.kind == "image" else None,
            "tokenizer": backbone.tokenizer,
            "method": method,
            "pretraining": _without_paths_and_times(backbone.pretraining),
            "features": features,
            **stated(empty, head),
        }
    )


def read_features(plan: ReleasePlan, paths: Paths) -> ReleasedFeatures | None:
    """Return what the head of a release reads; None if it is the network's own head.

    Where and how features are read depends on the shapes of inputs alone, so one test example shows it.
    """
    features = plan.features
    if features is None:
        return None
    data = PreparedDataset.open(paths.dataset(plan.sweep.dataset))
    run = FeatureRun(
        data.metadata,
        PreparedBackbone.open(paths.backbone(plan.sweep.backbone)),
        features,
        torch.device("cpu"),
    )
    width = run(data.test_inputs[:1]).shape[1]
    read = run.network
    return ReleasedFeatures.model_validate(
        {
            **features.model_dump(),
            **stated_tap(read.tap),
            "reduction": read.reduction,
            "prefix_tokens": read.prefix_tokens if read.reduction == "mean_of_tokens" else 0,
            "width": width,
        }
    )


def _without_paths_and_times(pretraining: Mapping[str, Any]) -> dict[str, Any]:
    """Remove local paths and times from a description of weights."""
    return {key: each for key, each in pretraining.items() if key not in ("path", "seconds")}
