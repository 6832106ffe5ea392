"""Recommended settings: the rule for the batch size, and the formula for C and the learning rate."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.test_features import with_weights
from tests.training.tiny_study import prepare, tiny_sections
from torch.nn import functional

from dpsweep.config import HeadOnly
from dpsweep.models.build import build_head, build_model
from dpsweep.recommend.problem_facts import expected_gradient_norm, facts_of_sweep
from dpsweep.recommend.rule import (
    LEAST_STEPS,
    NoAdviceError,
    ProblemFacts,
    batch_size,
    recommend,
    smallest_batch_size,
)
from dpsweep.study import Study, load_study

STUDIES = Path(__file__).parents[2] / "studies"
FACTS = ProblemFacts(5000, 2.0, 1e-5, 8, "adam", gradient_norm=5.0)


def test_the_smallest_batch_of_nearly_least_noise() -> None:
    noise = {32: 30.0, 64: 20.9, 128: 20.1, 256: 20.0}
    steps = {32: 400, 64: 200, 128: 100, 256: 50}

    def smallest(noise: dict[int, float], steps: dict[int, int]) -> int:
        return smallest_batch_size(noise.__getitem__, steps)

    assert smallest(noise, steps) == 64
    # A batch size with too few steps neither counts nor sets the minimum.
    assert smallest(noise | {512: 10.0}, steps | {512: LEAST_STEPS - 1}) == 64
    assert smallest(noise | {512: 10.0}, steps | {512: LEAST_STEPS}) == 512
    assert smallest({64: 3.0, 128: 1.0}, {64: 8, 128: 4}) == 64


def test_the_formula_scales_with_the_norm_and_the_steps() -> None:
    made, longer = recommend(FACTS), recommend(replace(FACTS, gradient_norm=20.0))
    assert made.batch_size == longer.batch_size == batch_size(FACTS)
    assert made.steps == round(5000 * 8 / made.batch_size)
    assert made.clipping_bound == pytest.approx(0.75) and longer.clipping_bound == pytest.approx(3)
    # In a random walk of T steps, the logits of an example with gradient norm G move by about 1.
    walk = made.learning_rate * math.sqrt(made.steps) * FACTS.gradient_norm
    assert walk == pytest.approx(1)
    assert longer.learning_rate == pytest.approx(made.learning_rate / 4)


def test_the_small_grid_has_rates_for_each_batch_size() -> None:
    made = recommend(FACTS)
    assert list(made.small_grid) == [
        made.batch_size // 4,
        made.batch_size,
        min(4 * made.batch_size, 5000),
    ]
    for size, rates in made.small_grid.items():
        walk = math.sqrt(FACTS.steps(size)) * FACTS.gradient_norm
        assert [rate * walk for rate in rates] == pytest.approx([0.5, 1, 2])
    # Batch sizes are limited to N.
    few = replace(FACTS, train_size=60, epochs=40)
    assert max(recommend(few).small_grid) == 60
    assert list(recommend(replace(few, train_size=2, delta=0.1)).small_grid) == [1, 2]


def test_infinite_epsilon_and_sgd_are_refused() -> None:
    with pytest.raises(NoAdviceError, match="epsilon: found inf; allowed: finite"):
        recommend(ProblemFacts(1000, math.inf, 1e-5, 1, "adam", 5.0))
    with pytest.raises(NoAdviceError, match="optimizer: found sgd; allowed: adam"):
        recommend(replace(FACTS, optimizer="sgd"))


@pytest.mark.parametrize(
    ("sweep", "square", "classes"),
    [("cifar100_vit-tiny_head", 192, 100), ("20newsgroups_minilm_head", 1, 20)],
)
def test_the_expected_gradient_norm_is_that_of_a_head(
    sweep: str, square: int, classes: int
) -> None:
    expected = expected_gradient_norm(load_study(STUDIES / "frozen-features.yaml"), sweep).value
    width = 384 if square == 1 else square
    features = torch.randn(1, width)
    features *= math.sqrt(square) / features.norm()
    head = build_head(width, classes)
    functional.cross_entropy(head(features), torch.tensor([3])).backward()
    gradients = [each.grad.flatten() for each in head.parameters() if each.grad is not None]
    assert torch.cat(gradients).norm().item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("level", "epsilon"),
    [pytest.param("low", 0.5, marks=pytest.mark.slow), ("middle", 2), ("high", 8)],
)
def test_the_study_sweeps_the_recommended_grids(level: str, epsilon: float) -> None:
    study = load_study(STUDIES / "fashion-mnist.yaml")
    advised = recommend(facts_of_sweep(study, "shorter", epsilon, 10))
    sweeps = [study.sweeps[f"{level}-{place}"] for place in ("quarter", "advised", "fourfold")]
    swept = {
        study.numeric_batch_size("fashion-mnist", size): sweep.learning_rates
        for sweep in sweeps
        for size in sweep.batch_size
    }
    assert swept.keys() == advised.small_grid.keys()
    for size, rates in advised.small_grid.items():
        assert swept[size] == pytest.approx(rates, rel=0.05)
    for sweep in sweeps:
        assert sweep.epsilon == [epsilon] and sweep.epochs == [10]
        assert sweep.clipping_bound == pytest.approx([advised.clipping_bound], rel=0.05)


def test_the_measured_norm_of_a_prepared_network_is_that_of_its_gradients(
    tmp_path: Path,
) -> None:
    study = Study.model_validate(tiny_sections({}, {"kind": "film"}))
    paths = prepare(study, tmp_path).paths
    with_weights(paths.backbone("vit"), scale=5.0)
    found = expected_gradient_norm(study, "digits", paths)
    assert found.source == "measured on made-up inputs"
    model = build_model(paths.backbone("vit"), HeadOnly(kind="head"), 10, seed=1).eval()
    inputs = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    norms: list[float] = []
    for row in inputs:
        model.zero_grad()
        functional.cross_entropy(model(row[None]), torch.tensor([3])).backward()
        gradients = [each.grad.flatten() for each in model.parameters() if each.grad is not None]
        norms.append(torch.cat(gradients).norm().item())
    assert found.value == pytest.approx(np.median(norms), rel=0.05)
    # The guess is far off: the network scales its features.
    assert expected_gradient_norm(study, "digits").source == "a guess"
    assert expected_gradient_norm(study, "digits").value < found.value / 3
