"""Training of a model for release, with secret randomness and without files before the end."""

import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch

from dpsweep.data.prepared import PreparedDataset
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.models.build import build_model, linear_head
from dpsweep.privacy import Calibration
from dpsweep.privacy.calibration import calibrate_sampling
from dpsweep.privacy.tuning import (
    TuningNoise,
    calibrate_tuning,
    draw_trial_count,
    trial_count_probabilities,
)
from dpsweep.release import ReleaseError
from dpsweep.release.section import Candidate, ReleasePlan, own_features
from dpsweep.study import Study
from dpsweep.study.methods import HeadOnly
from dpsweep.study.paths import Paths
from dpsweep.study.release import Release
from dpsweep.training.checkpoint import final_parameters
from dpsweep.training.context import TrialContext, load_trainable
from dpsweep.training.features import open_inputs
from dpsweep.training.processes import on_first
from dpsweep.training.randomness import new_secret, numpy_stream
from dpsweep.training.specification import TrialSpec, check_size, specify
from dpsweep.training.trial import evaluate, train_trial

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


def tuning_noise(study: Study, release: Release) -> TuningNoise:
    """Return the noise of all candidates of a release with ``selection: private``.

    Raises:
        CalibrationError: no base mechanism meets the total epsilon.
        ReleaseError: the held-out part is too small for the noise of its score.
    """
    plan = ReleasePlan(study, release)
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


def fixed_noise(study: Study, release: Release) -> Calibration | None:
    """Return the noise of a release with ``selection: fixed``; None for a tuned release.

    Raises:
        CalibrationError: no noise gives the total epsilon.
    """
    if release.selection == "private":
        return None
    plan = ReleasePlan(study, release)
    (cell, _) = plan.candidates[0]
    return calibrate_sampling(release.epsilon, study.privacy.delta, plan.sampling(cell))


def train_release(
    study: Study, paths: Paths, release: Release
) -> tuple[TrainedModel, TuningNoise | None, float]:
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
    plan = ReleasePlan(study, release)
    parts, candidates = plan.sweep, plan.candidates
    tuning = tuning_noise(study, release) if release.selection == "private" else None
    data = open_inputs(study, paths, parts.problem.name)
    backbone = PreparedBackbone.open(paths.backbone(parts.backbone))
    prefix = _head_prefix(data, backbone) if own_features(study, parts.problem.name) is None else ""
    context = TrialContext(data, backbone, study.methods[parts.method], release.held_out)

    def train(candidate: Candidate) -> tuple[TrainedModel, int]:
        cell, rate = candidate
        sampling = plan.sampling(cell)
        if tuning is None:
            own = calibrate_sampling(release.epsilon, study.privacy.delta, sampling)
        else:
            own = tuning.calibration(sampling)
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
