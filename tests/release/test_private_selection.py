"""Selection of the best of a random number of trials."""

import itertools
from collections import Counter

import numpy as np
import pytest

from dpsweep.privacy.tuning import TuningNoise, trial_count_probabilities
from dpsweep.release import train as release_training
from dpsweep.release.train import select_privately


def noise(score_noise: float, mean: float = 3) -> TuningNoise:
    return TuningNoise(1, 1e-5, mean, 1, 0.3, 0.8, 0.1, 0.05, score_noise, [])


def test_the_highest_score_wins(monkeypatch):
    monkeypatch.setattr(release_training, "draw_trial_count", lambda *_: 40)
    rights = {"a": 10, "b": 30, "c": 20}
    models = itertools.count()
    (name, _), score = select_privately(
        list(rights),
        lambda name: ((name, next(models)), rights[name]),
        noise(1e-3),
        np.random.default_rng(0),
    )
    assert name == "b"
    assert score == pytest.approx(30, abs=0.01)
    assert next(models) == 40


def test_scores_are_noisy(monkeypatch):
    monkeypatch.setattr(release_training, "draw_trial_count", lambda *_: 1)
    random = np.random.default_rng(0)
    scores = [
        select_privately(["a"], lambda _: (None, 100), noise(7), random)[1] for _ in range(2000)
    ]
    assert np.mean(scores) == pytest.approx(100, abs=0.8)
    assert np.std(scores) == pytest.approx(7, rel=0.08)


def test_candidates_and_their_number_are_random():
    random = np.random.default_rng(0)
    counts: Counter[int] = Counter()
    drawn: Counter[str] = Counter()
    for _ in range(3000):
        trained: list[str] = []

        def train(name: str, trained: list[str] = trained) -> tuple[None, int]:
            trained.append(name)
            return None, 0

        select_privately(["a", "b"], train, noise(1), random)
        counts[len(trained)] += 1
        drawn.update(trained)
    expected = 3000 * trial_count_probabilities(3, 1, 4)
    found = np.array([counts[k] for k in range(1, 5)])
    assert (np.abs(found - expected) < 5 * np.sqrt(expected)).all()
    assert drawn["a"] == pytest.approx(drawn["b"], rel=0.06)
