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

from dpsweep.models.build import build_head, build_model
from dpsweep.recommend.rule import (
    NoAdviceError,
    ProblemFacts,
    batch_size,
    best_batch_size,
    expected_gradient_norm,
    recommend,
)
from dpsweep.study import Study, load_study
from dpsweep.study.methods import HeadOnly

STUDIES = Path(__file__).parents[2] / "studies"
FACTS = ProblemFacts(5000, 2.0, 1e-5, 8, "adam", gradient_norm=5.0)


def test_the_batch_size_trades_noise_against_steps() -> None:
    noise = {32: 30.0, 64: 20.9, 128: 20.1, 256: 20.0}
    asked: list[int] = []

    def best(noise: dict[int, float], parameters: int) -> int:
        def looked_up(size: int) -> float:
            asked.append(size)
            return noise[size]

        return best_batch_size(looked_up, noise, parameters)

    def cost(size: int, parameters: int) -> float:
        return math.log(noise[size]) + 0.05 * size / noise[size] / math.sqrt(parameters)

    for parameters in (1, 10, 1000, 10**8):
        assert best(noise, parameters) == min(noise, key=lambda each: cost(each, parameters))
    # In many dimensions noise is above every signal: the least noise is best.
    assert best(noise, 10**8) == 256
    # With equal noise many small steps are best.
    assert best(dict.fromkeys(noise, 20.0), 1000) == 32
    # The many steps of small batches are not calibrated in vain.
    asked.clear()
    best({32: 1000.0, 64: 500.0, 128: 20.1, 256: 20.0}, 1000)
    assert asked == [256, 128, 64]


def test_the_formula_scales_with_the_norm_and_the_steps() -> None:
    made, longer = recommend(FACTS), recommend(replace(FACTS, gradient_norm=20.0))
    assert made.batch_size == longer.batch_size == batch_size(FACTS)
    assert made.steps == round(5000 * 8 / made.batch_size)
    assert made.clipping_bound == pytest.approx(0.75) and longer.clipping_bound == pytest.approx(3)
    # In a random walk of T steps, the logits of an example with gradient norm G move by about 1 or 2.
    for source, far in (("exact", 2), ("measured on made-up inputs", 1), ("a guess", 1)):
        found = recommend(replace(FACTS, norm_source=source))
        walk = found.learning_rate * math.sqrt(found.steps) * FACTS.gradient_norm
        assert walk == pytest.approx(far)
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
        assert [rate * walk for rate in rates] == pytest.approx([1, 2, 4])
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
