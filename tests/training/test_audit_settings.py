"""One setting of an audit: its sizes, its randomness and its verdict."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.training.tiny_study import N, Prepared, calibrate, tiny_sections

from dpsweep.privacy import Calibration
from dpsweep.privacy.audit import AuditPlan, likelihood_scores, right_guesses
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.training import canaries
from dpsweep.training.canaries import AuditedTrial, CanaryContext, audit_trial, measure_setting
from dpsweep.training.randomness import numpy_stream
from dpsweep.training.trial import TrialSpec

CANARIES = 60
AUDIT = {
    "sweep": "digits", "epsilon": [4.0], "epochs": 4, "batch_size": ["full"], "clipping_bound": 1.0,
    "learning_rate": 0.01, "canaries": CANARIES,
}  # fmt: skip
calibrate_once = cache(canaries.calibrate_sampling)
PLAN = AuditPlan(30, power={0.5: 0.9, 0.7: 0.2})


class Measuring:
    """A function that measures settings, and records the trials and their arguments."""

    def __init__(self, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths, self.share = paths, 1.0
        monkeypatch.setattr(canaries, "audit_trial", self.audit)
        monkeypatch.setattr(canaries, "plan_audit", self.plan)
        monkeypatch.setattr(canaries, "calibrate_sampling", calibrate_once)

    def audit(self, spec: TrialSpec, context: CanaryContext, secret: bytes) -> AuditedTrial:
        """Audit the trainer; multiply the observations by `share`."""
        found = audit_trial(spec, context, secret)
        self.spec, self.secret = spec, secret
        self.seen = replace(found, observations=self.share * found.observations)
        return self.seen

    def plan(self, noise: Calibration, canaries: int, guesses: int | None) -> AuditPlan:
        honest = calibrate(4.0, 1e-5, N + CANARIES, noise.batch_size, noise.steps)
        assert (noise, canaries, guesses) == (honest, CANARIES, None)
        return PLAN

    def __call__(self, **audit: Any) -> dict[str, Any]:
        study = Study.model_validate(tiny_sections({}, {"kind": "film"}) | {"audit": AUDIT | audit})
        assert study.audit is not None
        (cell,) = study.audit_cells()
        measure_setting(study, self.paths, study.audit, cell)
        found: dict[str, Any] = json.loads(Path(self.paths.audited(cell)).read_text())
        return found


@pytest.fixture
def measure(tiny: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measuring:
    return Measuring(tiny.copied(tmp_path).paths, monkeypatch)


@pytest.mark.parametrize("batch_size", ["full", 100])
def test_canaries_belong_to_the_training_set_and_the_plan_gives_the_guesses(measure, batch_size):
    found = measure(batch_size=[batch_size])
    spec, seen = measure.spec, measure.seen
    expected = N + CANARIES if batch_size == "full" else batch_size
    assert (spec.train_size, spec.batch_size) == (N + CANARIES, expected)
    assert found["full_batch"] == (batch_size == "full") and found["batch_size"] == expected
    assert found["sampling_rate"] == expected / (N + CANARIES) and found["examples"] == N
    scores = likelihood_scores(seen.observations, spec.noise_multiplier, found["sampling_rate"])
    curve = found["curve"]
    assert (curve["guesses"], curve["correct"]) == (30, right_guesses(scores, seen.included)[14])
    assert found["canaries"] == CANARIES and found["consistent"]
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
        assert (seen.included == own.integers(2, size=CANARIES)).all()
        secrets.append(measure.secret)
        found = seen.included, seen.trial.steps["sampled_examples"], seen.observations
        drawn.append([each.tobytes() for each in found])
    assert [len(secret) >= 16 for secret in secrets] == [False, True, True]
    assert [len(set(each)) for each in (secrets, *zip(*drawn, strict=True))] == [3, 3, 3, 3]
