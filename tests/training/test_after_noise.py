"""What follows the noise: DP-AdamBC, averages, and what torch refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.study.small import load_small

from dpsweep.study.config import optimizer_of
from dpsweep.training.adam_bc import AdamBC
from dpsweep.training.after_noise import (
    OptimizerError,
    RunningAverage,
    make_optimizer,
    mistaken_optimizers,
)


def steps_of(
    optimizer: torch.optim.Optimizer, parameter: torch.nn.Parameter, gradients: Any
) -> Any:
    for gradient in gradients:
        parameter.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
    return parameter.detach().numpy()


@pytest.mark.parametrize("floor", [0.0, 0.3, 2.0])
def test_adam_bc_is_the_update_of_the_paper(floor: float) -> None:
    random = np.random.default_rng(1)
    sigma, size, rate, eps = 2.0, 40, 0.03, 1e-3
    variance = (sigma / size) ** 2
    gradients = (
        0.05 * random.standard_normal((30, 8)) + random.standard_normal((30, 8)) * sigma / size
    )
    parameter = torch.nn.Parameter(torch.zeros(8, dtype=torch.float64))
    section = optimizer_of({"kind": "adam-bc", "betas": [0.8, 0.95], "eps": eps, "floor": floor})
    found = steps_of(make_optimizer(section, [parameter], rate, sigma / size), parameter, gradients)
    value = np.zeros(8)
    for step in range(1, 31):
        past = gradients[:step]
        weights = {beta: (1 - beta) * beta ** np.arange(step - 1, -1, -1) for beta in (0.8, 0.95)}
        first = weights[0.8] @ past / (1 - 0.8**step)
        second = weights[0.95] @ past**2 / (1 - 0.95**step)
        value -= rate * first / (np.sqrt(np.maximum(second - variance, floor * variance)) + eps)
    np.testing.assert_allclose(found, value, rtol=1e-9)


def test_adam_bc_without_noise_is_adam() -> None:
    gradients = np.random.default_rng(2).standard_normal((20, 5))
    ends = []
    for kind in ("adam", "adam-bc"):
        parameter = torch.nn.Parameter(torch.ones(5, dtype=torch.float64))
        ends.append(
            steps_of(
                make_optimizer(optimizer_of(kind), [parameter], 0.1, 0.0), parameter, gradients
            )
        )
    np.testing.assert_allclose(ends[0], ends[1], rtol=1e-12)


def test_adam_bc_takes_longer_steps_along_what_is_not_noise() -> None:
    """Beside noise of a hundred times its size, a constant gradient moves Adam by a hundredth."""
    random = np.random.default_rng(3)
    noise = 100 * random.standard_normal((4000, 1))
    moved = {}
    for kind in ("adam", "adam-bc"):
        parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        section = optimizer_of(kind if kind == "adam" else {"kind": kind, "floor": 1e-4})
        optimizer = make_optimizer(section, [parameter], 1e-3, 100.0)
        moved[kind] = -float(steps_of(optimizer, parameter, 1 + noise)[0])
    assert moved["adam-bc"] > 3 * abs(moved["adam"])


def test_adam_bc_refuses_to_compute_gradients_again() -> None:
    with pytest.raises(ValueError, match="closure: found one; allowed: none"):
        AdamBC([torch.nn.Parameter(torch.zeros(1))], 0.1, noise_variance=1.0).step(lambda: 0.0)


@pytest.mark.parametrize(
    "average", [{"kind": "ema", "decay": 0.9999}, {"kind": "tail", "share": 1}]
)
def test_averages_keep_the_digits_of_long_trainings(average: dict[str, Any]) -> None:
    """In float32, a step in ten thousand would be rounded away."""
    steps, parameter = 5000, torch.nn.Parameter(torch.zeros(1))
    running = RunningAverage(optimizer_of({"kind": "sgd", "average": average}), steps, {})
    values = 1 + 1e-4 * np.random.default_rng(4).standard_normal(steps).astype(np.float32)
    for step, value in enumerate(values, start=1):
        with torch.no_grad():
            parameter.fill_(float(value))
        running.update(step, {"weight": parameter})
    decay = average.get("decay", 1.0)
    wanted = np.average(values.astype(np.float64), weights=decay ** np.arange(steps - 1, -1, -1.0))
    assert float(running.values["weight"]) == pytest.approx(wanted, abs=1e-12)


def test_without_an_average_nothing_is_kept() -> None:
    running = RunningAverage(optimizer_of("adam"), 10, {})
    running.update(1, {"weight": torch.nn.Parameter(torch.zeros(1))})
    assert running.values == {}


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"kind": "torch", "name": "RMSprob"}, "optimizers.x: RMSprob: torch refuses it"),
        (
            {"kind": "torch", "name": "RMSprop", "arguments": {"alhpa": 0.9}},
            "unexpected keyword argument 'alhpa'",
        ),
        (
            {"kind": "torch", "name": "RMSprop", "arguments": {"alpha": -1}},
            "Invalid alpha value: -1",
        ),
        ({"kind": "torch", "name": "Muon"}, "Muon"),
        ({"kind": "torch", "name": "Optimizer"}, "Optimizer"),
        ({"kind": "torch", "name": "swa_utils"}, "swa_utils"),
    ],
)
def test_what_torch_refuses_is_named_before_training(
    tmp_path: Path, section: dict[str, Any], said: str
) -> None:
    (found,) = mistaken_optimizers(load_small(tmp_path, {"optimizers": {"x": section}}))
    assert found.startswith("optimizers.x: ")
    assert said in found
    if "arguments" in section:
        with pytest.raises(OptimizerError, match="torch refuses it"):
            make_optimizer(optimizer_of(section), [torch.nn.Parameter(torch.zeros(2))], 0.1, 0.1)


@pytest.mark.parametrize(
    "name", ["RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "Adadelta", "ASGD"]
)
def test_other_classes_of_torch_take_a_step(tmp_path: Path, name: str) -> None:
    defined = {"x": {"kind": "torch", "name": name}}
    assert not list(mistaken_optimizers(load_small(tmp_path, {"optimizers": defined})))
