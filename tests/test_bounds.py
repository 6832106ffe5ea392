"""The bounds on a linear head: their formulas on a tiny problem, and what the documents show of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks import tables
from benchmarks.evidence import bounds as benchmark
from matplotlib.testing.compare import compare_images

from dpsweep.base.files import read_json
from dpsweep.privacy import Calibration

NUMBERS: dict[str, Any] = read_json(benchmark.RESULT)
N, FEATURES, CLASSES, STEPS = 40, 5, 3, 6
DIMENSION = CLASSES * (FEATURES + 1)


def problem(sigma: float) -> Any:
    """Two clouds and a third class at random, every step on all examples."""
    random = np.random.default_rng(3)
    labels = random.integers(CLASSES, size=N)
    features = random.normal(size=(N, FEATURES)) + 2 * np.eye(CLASSES, FEATURES)[labels]
    noise = Calibration(
        epsilon=1.0, delta=1e-5, train_size=N, batch_size=N, steps=STEPS, noise_multiplier=sigma,
        certified_epsilon=1.0, accountant="analytic gaussian", pld_epsilon=1.0, opacus_epsilon=None,
        opacus_note="",
    )  # fmt: skip
    arrays = features.astype(np.float32), labels
    return benchmark.Problem(*arrays, *arrays, CLASSES, noise)


def gradients(problem: Any, head: np.ndarray) -> np.ndarray:
    """Of the examples' losses, written out; shape (N, dimension)."""
    inputs = np.concatenate([problem.train, np.ones((N, 1))], axis=1).astype(float)
    shares = np.exp(inputs @ head.T)
    shares /= shares.sum(1, keepdims=True)
    residuals = shares - np.eye(CLASSES)[problem.labels]
    return (residuals[:, :, None] * inputs[:, None, :]).reshape(N, -1)


def clipped(rows: np.ndarray, bound: float) -> np.ndarray:
    return rows * np.minimum(1, bound / np.linalg.norm(rows, axis=1))[:, None]


def curvature(problem: Any) -> float:
    """L of the summed loss."""
    inputs = np.concatenate([problem.train, np.ones((N, 1))], axis=1).astype(float)
    return float(np.linalg.eigvalsh(inputs.T @ inputs)[-1] / 2)


def test_a_head_is_trained_with_the_normalised_update() -> None:
    chosen, bound, rate = problem(sigma=0.0), 1.3, 0.7
    _, kept = benchmark.train(chosen, bound, rate, seed=0)
    head, wanted = np.zeros(DIMENSION), {}
    for step in range(STEPS + 1):
        wanted[step] = head.reshape(CLASSES, -1)
        total = clipped(gradients(chosen, wanted[step]), bound).sum(0)
        head = head - rate * total / bound / N
    for name, step in {"start": 0, "middle": STEPS // 2, "end": STEPS}.items():
        np.testing.assert_allclose(kept[name], wanted[step], atol=1e-5)


def test_steps_are_held_against_the_theorem() -> None:
    chosen, sigma = problem(sigma=0.3), 0.3
    head = np.random.default_rng(1).normal(size=(CLASSES, FEATURES + 1)) / 3
    rows, limit = gradients(chosen, head), 1 / curvature(chosen)
    total, bounds = rows.sum(0), [0.2, 1.0, 30.0]
    [found] = benchmark.progress(chosen, {"start": head}, bounds)
    unit = total @ total * limit / 2
    for bound, row in zip(bounds, found["bounds"], strict=True):
        kept = clipped(rows, bound).sum(0)
        noise = bound**2 * sigma**2 * DIMENSION
        error = noise + ((total - kept) ** 2).sum()
        theorem = [part * limit / 2 * (error - total @ total) for part in benchmark.PARTS]
        assert row["theorem"] == pytest.approx([each / unit for each in theorem])
        aligned = (kept @ total) ** 2 / ((kept @ kept + noise) * (total @ total))
        assert row["tuned_bound"] == pytest.approx(-aligned)
        # Measured gains keep both, and the steps that were tried begin with those of the theorem.
        slack = 5 * np.array(row["standard_error"])
        assert (np.array(row["measured"]) <= np.array(row["theorem"]) + slack).all()
        assert row["tuned_measured"] <= min(row["measured"]) + 1e-12
    assert found["median_norm"] == pytest.approx(np.median(np.linalg.norm(rows, axis=1)))


def test_the_convergence_bound_has_the_constants_of_the_training() -> None:
    chosen = problem(sigma=0.4)
    heads = {"start": np.zeros((CLASSES, FEATURES + 1)), "end": np.ones((CLASSES, FEATURES + 1))}
    heads["end"][0] = -1
    found = benchmark.koloskova(chosen, heads, [0.1, 10.0], 0.25)
    assert found["smoothness"] == pytest.approx(curvature(chosen) / N)
    assert found["initial_gap"] == pytest.approx(np.log(CLASSES) - 0.25)
    for name, head in heads.items():
        rows = gradients(chosen, head)
        mean = rows.mean(0)
        spread = np.sqrt(((rows - mean) ** 2).sum(1).mean())
        assert found["deviations"][name] == pytest.approx(spread)
        assert found["measured_gradient_norms"][name] == pytest.approx(np.linalg.norm(mean))
    assert found["gradient_deviation"] == max(found["deviations"].values())
    rest = {"noise_multiplier": 0.4, "dimension": DIMENSION, "batch_size": N, "steps": STEPS}
    assert {name: found[name] for name in rest} == rest


def test_the_picture_is_that_of_the_numbers(tmp_path: Path) -> None:
    drawn = tmp_path / "benchmark.png"
    benchmark.draw_picture(drawn)
    # As in test_pictures.py.
    assert compare_images(str(benchmark.PICTURE), str(drawn), 2.0) is None, (
        "run: python -m benchmarks.evidence.bounds --picture"
    )


@pytest.mark.parametrize("name", ["progress of steps", "bound of Koloskova et al."])
def test_other_numbers_are_another_table(name: str) -> None:
    render = tables.TABLES[name][2]
    assert render({**NUMBERS, "pieces": NUMBERS["pieces"][1:]}) != render(NUMBERS)
