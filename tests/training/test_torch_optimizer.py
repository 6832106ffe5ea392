"""The steps after the noise: DP-AdamBC, averages, and optimizers that torch refuses."""

import numpy as np
import pytest
import torch
from tests.study.small import load_small

from dpsweep.study.optimizers import optimizer_of
from dpsweep.training.optimizer import (
    OptimizerError,
    RunningAverage,
    make_optimizer,
    mistaken_optimizers,
)


@pytest.mark.parametrize(
    "average", [{"kind": "ema", "decay": 0.9999}, {"kind": "tail", "share": 1}, None]
)
def test_averages_over_many_steps_are_precise(average):
    """In float32, weights of one in ten thousand would be lost; without an average nothing is kept."""
    steps, parameter = 5000, torch.nn.Parameter(torch.zeros(1))
    running = RunningAverage(optimizer_of({"kind": "sgd", "average": average}), steps, {})
    values = 1 + 1e-4 * np.random.default_rng(4).standard_normal(steps).astype(np.float32)
    for step, value in enumerate(values, start=1):
        with torch.no_grad():
            parameter.fill_(float(value))
        running.update(step, {"weight": parameter})
    if average is None:
        assert running.values == {}
        return
    decay = average.get("decay", 1.0)
    wanted = np.average(values.astype(np.float64), weights=decay ** np.arange(steps - 1, -1, -1.0))
    assert float(running.values["weight"]) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("RMSprob", {}, "optimizers.x: RMSprob: torch refuses it"),
        ("RMSprop", {"alhpa": 0.9}, "unexpected keyword argument 'alhpa'"),
        ("RMSprop", {"alpha": -1}, "Invalid alpha value: -1"),
        *((name, {}, name) for name in ("Muon", "Optimizer", "swa_utils")),
        *((name, {}, None) for name in ("RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "ASGD")),
    ],
)
def test_optimizers_that_torch_refuses_are_reported_before_training(
    tmp_path, name, arguments, said
):
    section = {"kind": "torch", "name": name, "arguments": arguments}
    found = list(mistaken_optimizers(load_small(tmp_path, {"optimizers": {"x": section}})))
    assert len(found) == (said is not None)
    for line in found:
        assert line.startswith("optimizers.x: ") and said in line
    if arguments:
        with pytest.raises(OptimizerError, match="torch refuses it"):
            make_optimizer(optimizer_of(section), [torch.nn.Parameter(torch.zeros(2))], 0.1, 0.1)
