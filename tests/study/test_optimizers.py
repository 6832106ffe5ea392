"""The section `optimizers`: names, defaults, identities, schedules, averages, sweeps of several."""

import inspect
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.study.small import load_small

from dpsweep.study.fingerprints import trainer_fingerprint
from dpsweep.study.methods import Augmentations
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


def test_a_sweep_of_several_optimizers_becomes_one_sweep_each(tmp_path: Path) -> None:
    own = {"momentum": [0.5, 5], "late": None, "sgd": {"first": 1, "last": 4, "count": 3}}
    study = load_small(tmp_path, {"optimizers": DEFINED, "sweeps/flat/optimizer": own})
    assert list(study.sweeps) == ["flat_momentum", "flat_late", "flat_sgd", "automatic"]
    rates = [sweep.learning_rates for sweep in study.sweeps.values()]
    assert rates == [[0.5, 5], [0.001, 0.01, 0.1], [1, 2, 4], [0.01, 0.1]]
    problems = [sweep.problem.name for sweep in study.sweeps.values()]
    assert problems[:2] == ["digits_pretrained_film_momentum", "digits_pretrained_film_late"]
    assert len({tuple(sweep.axes["epsilon"]) for sweep in study.sweeps.values()}) == 1
    listed = load_small(
        tmp_path, {"optimizers": DEFINED, "sweeps/flat/optimizer": ["momentum", "late"]}
    )
    assert list(listed.sweeps)[:2] == ["flat_momentum", "flat_late"]
    # The expanded study is valid, and has the same files as sweeps that name one optimizer each.
    again = type(study).model_validate(study.model_dump(mode="json", by_alias=True))
    assert again.sweeps == study.sweeps
    assert trainer_fingerprint(study, problems[0]) == trainer_fingerprint(listed, problems[0])


def test_file_names_depend_on_the_optimizers_settings(tmp_path: Path) -> None:
    def digits(**changes: Any) -> str:
        section = DEFINED["momentum"] | changes
        edits = {"optimizers": {"momentum": section}, "sweeps/flat/optimizer": "momentum"}
        study = load_small(tmp_path, edits)
        return study.settings_hash.cell(study.sweep_cells("flat")[0])

    assert digits() == digits(title="Heavy ball") != digits(momentum=0.8)


def test_a_sweep_of_counts_of_views_is_a_sweep_of_each(tmp_path: Path) -> None:
    methods = {
        f"views{count}": {"kind": "film", "augmentations": {"count": count, "flip": True}}
        for count in (1, 4)
    }
    edits = {f"methods/{name}": each for name, each in methods.items()}
    edits |= {"sweeps/flat/method": [*methods, "film"], "sweeps/flat/optimizer": ["adam", "sgd"]}
    study = load_small(tmp_path, edits)
    assert [name for name in study.sweeps if name.startswith("flat")] == [
        *("flat_views1_adam", "flat_views1_sgd", "flat_views4_adam", "flat_views4_sgd"),
        *("flat_film_adam", "flat_film_sgd"),
    ]
    sweep = study.sweeps["flat_views4_sgd"]
    assert sweep.problem.name == "digits_pretrained_views4_sgd"
    assert study.methods[sweep.method].augmentations == Augmentations(count=4, flip=True)
    again = type(study).model_validate(study.model_dump(mode="json", by_alias=True))
    assert again.sweeps == study.sweeps


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


def test_a_learning_rate_falls_linearly_or_as_a_cosine() -> None:
    linear = Adam(kind="adam", schedule="linear", warmup=0.2)
    wanted = [1 / 3, 2 / 3, *(1 - step / 8 for step in range(8))]
    assert [linear.factor(step, 10) for step in range(1, 11)] == pytest.approx(wanted)
    cosine = Adam(kind="adam", schedule="cosine")
    wanted = [0.5 + 0.5 * math.cos(math.pi * step / 10) for step in range(10)]
    assert [cosine.factor(step, 10) for step in range(1, 11)] == pytest.approx(wanted)
