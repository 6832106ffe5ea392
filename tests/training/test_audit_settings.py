"""One setting of an audit, around the trial: its sizes, its randomness, and what its evidence says."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.training.tiny_study import N, Prepared, tiny_sections

from dpsweep.privacy import Calibration
from dpsweep.privacy.audit_plan import AuditPlan
from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.guesses import count_correct, likelihood_scores
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.training import canaries
from dpsweep.training.canaries import AuditedTrial, CanaryContext, measure_setting
from dpsweep.training.randomness import numpy_stream
from dpsweep.training.specification import TrialSpec

CANARIES, PUBLIC = 60, {"randomness": "public"}
PLAN = AuditPlan(10, 30, power={0.5: 0.1, 0.7: 0.0}, curve_power={0.5: 0.9, 0.7: 0.2})


def study(**audit: Any) -> Study:
    section = {
        "sweep": "digits", "epsilon": [4.0], "epochs": 4, "batch_size": ["full"], "clipping_bound": 1.0,
        "learning_rate": 0.01, "canaries": CANARIES,
    }  # fmt: skip
    return Study.model_validate(tiny_sections({}, {"kind": "film"}) | {"audit": section | audit})


class Seen:
    """An audited trial of the exact mechanism with a share of its noise, and what it was called with."""

    share = 1.0

    def __call__(
        self, spec: TrialSpec, context: CanaryContext, secret: bytes = b""
    ) -> AuditedTrial:
        self.spec, self.secret = spec, secret
        coins = context._coins.integers(2, size=CANARIES).astype(np.bool_)
        random, rate = np.random.default_rng(1), spec.batch_size / spec.train_size
        sampled = random.random((spec.steps, CANARIES)) < rate
        noise = self.share * spec.noise_multiplier * random.standard_normal(sampled.shape)
        trial: Any = SimpleNamespace(record={"macro_accuracy": 0.5})
        self.audited = AuditedTrial(coins, (coins & sampled) + noise, trial)
        return self.audited


@pytest.fixture
def paths(tiny: Prepared, tmp_path: Path) -> Paths:
    return tiny.copied(tmp_path).paths


Measure = Callable[[Study], dict[str, Any]]


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    seen = Seen()
    monkeypatch.setattr(canaries, "audit_trial", seen)
    return seen


@pytest.fixture
def measure(paths: Paths, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> Measure:
    def plan(noise: Calibration, canaries: int, guesses: int | None) -> AuditPlan:
        assert (noise.noise_multiplier, canaries, guesses) == (
            calibrate(4.0, 1e-5, N + CANARIES, noise.batch_size, noise.steps).noise_multiplier,
            CANARIES,
            None,
        )
        return PLAN

    def measured(study: Study) -> dict[str, Any]:
        assert study.audit is not None
        (cell,) = study.audit_cells()
        measure_setting(study, paths, study.audit, cell)
        found: dict[str, Any] = json.loads(Path(paths.audited(cell)).read_text())
        return found

    monkeypatch.setattr(canaries, "plan_audit", plan)
    return measured


@pytest.mark.parametrize("batch_size", ["full", 100])
def test_canaries_belong_to_the_training_set_and_each_bound_has_its_own_guesses(
    measure: Measure, seen: Seen, batch_size: str | int
) -> None:
    found = measure(study(batch_size=[batch_size]))
    expected = N + CANARIES if batch_size == "full" else batch_size
    assert (seen.spec.train_size, seen.spec.batch_size) == (N + CANARIES, expected)
    assert found["full_batch"] == (batch_size == "full") and found["batch_size"] == expected
    assert found["sampling_rate"] == expected / (N + CANARIES) and found["examples"] == N
    scores = likelihood_scores(
        seen.audited.observations, seen.spec.noise_multiplier, found["sampling_rate"]
    )
    for evidence, guesses in ((found, 10), (found["curve"], 30)):
        assert evidence["guesses"] == guesses
        assert evidence["correct"] == count_correct(scores, seen.audited.included, guesses)
    assert found["canaries"] == CANARIES and found["consistent"]
    powers = found["power"]["0.5"]
    assert powers["pair"] == 0.1 and powers["curve"] == 0.9 and powers["noise"] > 0.5


def test_a_secret_audit_has_secret_coins(measure: Measure, seen: Seen) -> None:
    measure(study(**PUBLIC))
    public = numpy_stream(seen.spec.key, "canaries").integers(2, size=CANARIES)
    assert seen.secret == b"" and (seen.audited.included == public).all()
    secrets, coins = [], []
    for _ in range(2):
        measure(study(randomness="secret"))
        secrets.append(seen.secret)
        coins.append(seen.audited.included)
        own = numpy_stream(seen.spec.key, "canaries", secret=seen.secret)
        assert (coins[-1] == own.integers(2, size=CANARIES)).all()
    assert len(set(secrets)) == 2 and min(map(len, secrets)) >= 16
    assert (coins[0] != coins[1]).any() and (coins[0] != public).any()


def test_a_claim_falls_with_any_of_its_bounds(measure: Measure, seen: Seen) -> None:
    seen.share = 0.4
    found = measure(study())
    assert not found["measured_noise"]["consistent"] and not found["consistent"]
    # So few canaries and guesses refute nothing by themselves.
    assert found["lower_bound"] < 4 < found["measured_noise"]["lower_bound"]


def test_noise_is_measured_where_no_canary_is(measure: Measure, seen: Seen) -> None:
    found = measure(study())["measured_noise"]
    sums = seen.audited.observations[:, ~seen.audited.included].sum(axis=0)
    estimate = np.sqrt(np.mean(sums**2) / seen.spec.steps)
    assert estimate < found["noise_at_most"] < 2 * estimate
    assert found["noise_at_most"] > seen.spec.noise_multiplier
