"""Audits of the trainer, and of mistakes planted in it, which they must find."""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.training.tiny_study import CPU, SPEC, N, calibrate, prepare, tiny_sections
from torch import Tensor

from dpsweep.privacy import Calibration
from dpsweep.privacy.audit import AuditPlan, likelihood_scores, right_guesses
from dpsweep.study import Study
from dpsweep.study.clipping import FlatClipping
from dpsweep.study.networks import Augmentations, Film
from dpsweep.training import canaries
from dpsweep.training.canaries import (
    AuditedTrial,
    AuditError,
    CanaryContext,
    audit_trial,
    lower_bound_from_curve,
    measure_noise,
    measure_setting,
)
from dpsweep.training.optimizer import PrivateOptimizer, StepStatistics
from dpsweep.training.randomness import PoissonSampler, numpy_stream
from dpsweep.training.trial import TrialSpec

MicroBatches = Iterable[tuple[Tensor, Tensor, Tensor]]
Check = Callable[[AuditedTrial, TrialSpec], None]
FILM = Film(kind="film")
AUGMENTED = FILM.model_copy(update={"augmentations": Augmentations(count=2, crop=1)})
REAL, CANARIES, GUESSES = 89, 500, 100
SIZE = REAL + CANARIES
FULL = SIZE  # batch sizes
PART = 118  # sampling rate about 1/5


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A few digits, and a transformer of one token with about 1,500 FiLM parameters."""
    sections = tiny_sections({}, {"kind": "film"})
    sections["datasets"]["digits"]["source"]["test_share"] = 0.95
    sections["datasets"]["digits"] |= {"train_size": REAL, "test_size": 1708}
    sections["backbones"]["vit"]["arguments"] |= {"patch_size": 8, "embed_dim": 96} | {
        "global_pool": "avg",
        "class_token": False,
    }
    made = prepare(Study.model_validate(sections), tmp_path_factory.mktemp("audit"))
    return made.data, made.backbone


@pytest.fixture(scope="module")
def audit(prepared):
    def audit(trial):
        coins = numpy_stream(trial.key, "canaries")
        return audit_trial(trial, CanaryContext(*prepared, FILM, CANARIES, coins, device=CPU))

    return audit


@pytest.fixture(scope="module")
def proper(audit):
    """An audit of the unchanged trainer, cached for each trial."""
    known: dict[str, AuditedTrial] = {}

    def run(trial):
        if trial.key not in known:
            known[trial.key] = audit(trial)
        return known[trial.key]

    return run


def spec(epsilon: float = 1.0, batch_size: int = FULL, steps: int = 4, **changes: Any) -> TrialSpec:
    noise = calibrate(epsilon, 1e-5, SIZE, batch_size, steps).noise_multiplier
    plain = replace(
        SPEC,
        backbone="transformer",
        epsilon=epsilon,
        noise_multiplier=noise,
        train_size=SIZE,
        batch_size=batch_size,
        steps=steps,
        learning_rate=0.01,
        engine="expanded",
        physical_batch=64,
    )
    return replace(plain, **changes)


# -- canaries --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [FILM, AUGMENTED], ids=["rows", "views"])
@pytest.mark.parametrize("units", [None, np.arange(REAL) // 3], ids=["images", "persons"])
def test_a_canary_of_several_rows_contributes_exactly_one(prepared, units, method):
    """A canary is a unit: it has several rows, or several views, and counts once."""
    data, backbone = prepared
    size = CANARIES + (REAL if units is None else len(set(units)))
    trial = spec(math.inf, PART, steps=2, train_size=size, rows_per_unit=0 if units is None else 2)
    coins = numpy_stream(trial.key, "canaries")
    made = replace(data, train_units=units), backbone, method, CANARIES, coins
    context = CanaryContext(*made, device=CPU)
    assert context.train.protected == size
    seen = audit_trial(trial, context)
    sampler = PoissonSampler(trial.sampling, trial.key, "sampling", secret=b"")
    sampled = np.array(
        [np.isin(np.arange(size - CANARIES, size), sampler.batch(t)) for t in (1, 2)]
    )
    np.testing.assert_allclose(seen.observations, sampled & seen.included, atol=1e-3)
    assert seen.trial.steps["sampled_examples"].tolist() == [
        len(sampler.batch(step)) for step in (1, 2)
    ]


def test_more_canaries_than_coordinates_are_refused(prepared):
    context = CanaryContext(*prepared, FILM, 5000, numpy_stream("coins"), device=CPU)
    with pytest.raises(AuditError, match=r"found 5000; allowed: at most 1546"):
        audit_trial(spec(math.inf, steps=1), context)


@pytest.mark.parametrize("batch", [{}, {"batch_size": PART, "steps": 20}])
def test_an_audit_of_the_trainer_is_informative(proper, batch):
    trial = spec(8.0, **batch)
    found = lower_bound_from_curve(proper(trial), claim(trial), GUESSES)
    assert found.consistent and 1 <= found.lower_bound <= 8


# -- planted mistakes ------------------------------------------------------------------------

_step = PrivateOptimizer.step


def with_noise(share: float) -> Callable[[PrivateOptimizer, MicroBatches], StepStatistics]:
    def step(self, microbatches):
        proper = self.noise_multiplier
        self.noise_multiplier = share * proper
        try:
            return _step(self, microbatches)
        finally:
            self.noise_multiplier = proper

    return step


def without_clipping(self: FlatClipping, norms: Tensor) -> Tensor:
    return torch.full_like(norms, 1 / self.bound)


def claim(trial: TrialSpec) -> Calibration:
    return calibrate(trial.epsilon, trial.delta, trial.train_size, trial.batch_size, trial.steps)


def check_guesses(seen: AuditedTrial, trial: TrialSpec) -> None:
    found = lower_bound_from_curve(seen, claim(trial), GUESSES)
    assert found.consistent, "guesses are too good"


def check_measured(seen: AuditedTrial, trial: TrialSpec) -> None:
    assert measure_noise(seen, claim(trial)).consistent, "too little noise"


SAMPLED = {"batch_size": PART, "steps": 12}
STEP = (PrivateOptimizer, "step")
# The changed method and its mistake, the trial, the check that finds it, and the message of the check.
MISTAKES: list[tuple[type, str, Callable[..., Any], dict[str, Any], Check, str]] = [
    (*STEP, with_noise(0.1), {}, check_guesses, "too good"),
    (FlatClipping, "factors", without_clipping, {}, check_guesses, "too good"),
    *(
        (*STEP, with_noise(0.7), trial | {"epsilon": 4.0}, check_measured, "too little")
        for trial in ({}, SAMPLED)
    ),
    # Sampled canaries are harder to guess.
    (*STEP, with_noise(0.5), {"epsilon": 4.0}, check_guesses, "too good"),
]


@pytest.mark.parametrize(("changed", "method", "mistake", "trial", "check", "said"), MISTAKES)
def test_the_trainer_passes_and_a_mistake_is_caught(
    audit, proper, monkeypatch, changed, method, mistake, trial, check, said
):
    check(proper(spec(**trial)), spec(**trial))
    monkeypatch.setattr(changed, method, mistake)
    with pytest.raises(AssertionError, match=said):
        check(audit(spec(**trial)), spec(**trial))


FEW_CANARIES = 60
AUDIT = {
    "sweep": "digits", "epsilon": [4.0], "epochs": 4, "batch_size": ["full"], "clipping_bound": 1.0,
    "learning_rate": 0.01, "canaries": FEW_CANARIES,
}  # fmt: skip
calibrate_once = cache(canaries.calibrate_sampling)


@pytest.fixture
def measure(tiny, tmp_path, monkeypatch):
    """A function that measures a setting; it keeps the trial, its secret and what was seen."""
    paths = tiny.copied(tmp_path).paths

    def audit(spec, context, secret):
        run.spec, run.secret, run.seen = spec, secret, audit_trial(spec, context, secret)
        return run.seen

    def plan(noise, canaries, guesses):
        honest = calibrate(4.0, 1e-5, N + FEW_CANARIES, noise.batch_size, noise.steps)
        assert (noise, canaries, guesses) == (honest, FEW_CANARIES, None)
        return AuditPlan(30, power={0.5: 0.9, 0.7: 0.2})

    def run(**settings):
        study = tiny_sections({}, {"kind": "film"}) | {"audit": AUDIT | settings}
        study = Study.model_validate(study)
        (cell,) = study.audit_cells()
        measure_setting(study, paths, study.audit, cell)
        return json.loads(Path(paths.audited(cell)).read_text())

    monkeypatch.setattr(canaries, "audit_trial", audit)
    monkeypatch.setattr(canaries, "plan_audit", plan)
    monkeypatch.setattr(canaries, "calibrate_sampling", calibrate_once)
    return run


@pytest.mark.parametrize("batch_size", ["full", 100])
def test_canaries_belong_to_the_training_set_and_the_plan_gives_the_guesses(measure, batch_size):
    found = measure(batch_size=[batch_size])
    spec, seen = measure.spec, measure.seen
    expected = N + FEW_CANARIES if batch_size == "full" else batch_size
    assert (spec.train_size, spec.batch_size) == (N + FEW_CANARIES, expected)
    assert found["full_batch"] == (batch_size == "full") and found["batch_size"] == expected
    assert found["sampling_rate"] == expected / (N + FEW_CANARIES) and found["examples"] == N
    scores = likelihood_scores(seen.observations, spec.noise_multiplier, found["sampling_rate"])
    curve = found["curve"]
    assert (curve["guesses"], curve["correct"]) == (30, right_guesses(scores, seen.included)[14])
    assert found["canaries"] == FEW_CANARIES and found["consistent"]
    powers = found["power"]["0.5"]
    assert powers["curve"] == 0.9 and powers["noise"] > 0.5
    # Noise is measured on excluded canaries.
    sums = seen.observations[:, ~seen.included].sum(axis=0)
    estimate = np.sqrt(np.mean(sums**2) / spec.steps)
    assert estimate < found["measured_noise"]["noise_at_most"] < 2 * estimate
    assert found["measured_noise"]["noise_at_most"] > spec.noise_multiplier


def test_a_secret_audit_has_secret_coins_batches_and_noise(measure):
    """It is consistent too, and no one can repeat it."""
    secrets, drawn = [], []
    for randomness in ("public", "secret", "secret"):
        assert measure(randomness=randomness, batch_size=[100], epochs=1)["consistent"]
        seen = measure.seen
        own = numpy_stream(measure.spec.key, "canaries", secret=measure.secret)
        assert (seen.included == own.integers(2, size=FEW_CANARIES)).all()
        secrets.append(measure.secret)
        found = seen.included, seen.trial.steps["sampled_examples"], seen.observations
        drawn.append([each.tobytes() for each in found])
    assert [len(secret) >= 16 for secret in secrets] == [False, True, True]
    assert [len(set(each)) for each in (secrets, *zip(*drawn, strict=True))] == [3, 3, 3, 3]
