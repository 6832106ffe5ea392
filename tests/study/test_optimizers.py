"""The section `optimizers`: names, defaults, identities, schedules and averages."""

import inspect
from typing import Any

import numpy as np
import pytest
import torch

from dpsweep.study.optimizers import BY_DEFAULT, SGD, Adam, TailAverage, optimizer_of

DEFINED: dict[str, Any] = {
    "momentum": {"kind": "sgd", "momentum": 0.9},
    "late": {"kind": "adam", "schedule": "cosine", "average": {"kind": "tail", "share": 0.2}},
    "rms": {"kind": "torch", "name": "RMSprop", "arguments": {"alpha": 0.9, "centered": True}},
}


def test_an_optimizer_is_read_from_its_identity() -> None:
    for section in [*BY_DEFAULT.values(), *map(optimizer_of, DEFINED.values())]:
        assert optimizer_of(section.identity()) == section
    assert {name: each.identity() for name, each in BY_DEFAULT.items()} == {
        name: name for name in ("adam", "adamw", "sgd", "adam-bc")
    }


# -- schedules and averages ------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 7, 100])
@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear"])
def test_a_schedule_reaches_the_full_rate_and_is_never_zero(
    steps: int, warmup: float, schedule: Any
) -> None:
    section = Adam(kind="adam", schedule=schedule, warmup=warmup)
    factors = [section.factor(step, steps) for step in range(1, steps + 1)]
    assert all(0 < factor <= 1 for factor in factors)
    rising = round(warmup * steps)
    assert factors[: rising + 1] == sorted(factors[: rising + 1])
    assert factors[rising:] == sorted(factors[rising:], reverse=True)
    assert rising == steps or factors[rising] == 1.0
    if schedule == "constant" and not warmup:
        assert set(factors) == {1.0}


def test_weights_of_averages_match_their_definitions() -> None:
    for share, last in ((0.2, 2), (0.25, 3), (1.0, 10), (0.01, 1), (0.3, 3)):
        tail = TailAverage(kind="tail", share=share)
        wanted = [0.0] * (10 - last) + [1 / last] * last
        assert weights_of(tail, 10) == pytest.approx(wanted, abs=1e-12)
    ema = optimizer_of({"kind": "sgd", "average": {"kind": "ema", "decay": 0.9}}).average
    powers = 0.9 ** np.arange(49, -1, -1)
    assert weights_of(ema, 50) == pytest.approx(powers / powers.sum())


def weights_of(average: Any, steps: int) -> list[float]:
    """Return the weight of each step in the final average."""
    weights = np.zeros(steps)
    for step in range(1, steps + 1):
        weights *= 1 - average.weight(step, steps)
        weights[step - 1] += average.weight(step, steps)
    return [float(weight) for weight in weights]


def test_defaults_are_those_of_torch() -> None:
    for name, section in BY_DEFAULT.items():
        if name == "adam-bc":
            continue
        constructor = getattr(torch.optim, section.torch_class()[0].partition(":")[2])
        theirs = inspect.signature(constructor).parameters
        for key, value in section.torch_class()[1].items():
            if key != "fused":
                default = theirs[key].default
                assert (list(default) if isinstance(default, tuple) else default) == value
    assert SGD(kind="sgd").torch_class()[1]["momentum"] == 0
