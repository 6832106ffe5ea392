"""bfloat16 in forward and backward passes changes little, and nothing else becomes bfloat16."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.gradients.tiny_models import make
from tests.training.tiny_study import CPU, SPEC, N, prepare, tiny_study

from dpsweep.gradients import make_engine
from dpsweep.gradients.precision import resolve_precision
from dpsweep.study.clipping import FlatClipping
from dpsweep.training.context import TrialContext
from dpsweep.training.trial import train_trial

# bfloat16 keeps 8 bits: one rounding is off by at most 1/256.
ROUNDING = 1 / 256


def relative_distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize(
    ("name", "bound"),
    [
        ("vit-film", 4 * ROUNDING),
        ("vit-lora", 4 * ROUNDING),
        ("vit-all", 4 * ROUNDING),
        # Group normalisation over a handful of numbers enlarges roundings, and ReLU flips signs.
        ("bit-film", 0.2),
        ("wide_resnet-all", 0.2),
    ],
)
def test_clipped_gradient_is_off_by_a_few_roundings(name: str, bound: float) -> None:
    case = make(name, torch.float32, examples=32)
    engines = [
        make_engine("auto", case.model, case.head, autocast=autocast)
        for autocast in (torch.bfloat16, None)
    ]
    half, full = [
        engine.clipped_sum(case.inputs, case.labels, case.mask, FlatClipping(1.0)).gradients
        for engine in engines
    ]
    flat = [torch.cat([part[name].flatten() for name in full]) for part in (half, full)]
    distance = relative_distance(*flat)
    assert 0 < distance < bound


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> TrialContext:
    return prepare(tiny_study({}, {"kind": "film"}), tmp_path_factory.mktemp("precision")).context()


# Noise and batches are drawn from the trial's key, which holds the precision: without noise
# and with the full batch, precision is all that differs.
FULL = replace(
    SPEC, optimizer="sgd", noise_multiplier=0.0, train_size=N, batch_size=N, physical_batch=128
)


def test_short_trial_ends_where_float32_ends(context: TrialContext) -> None:
    initial = {name: each.clone() for name, each in _parameters(context).items()}
    ends, losses = [], []
    for precision in ("float32", "bfloat16"):
        spec = replace(FULL, steps=80, learning_rate=1.0, precision=precision)
        trial, epochs = train_trial(spec, context, None, 1e9)
        assert {each.dtype for each in epochs.values()} == {np.dtype("float32")}
        moved = [
            torch.from_numpy(value) - initial[name.removeprefix("epoch1/")]
            for name, value in epochs.items()
        ]
        ends.append(torch.cat([each.flatten() for each in moved]))
        losses.append(trial.record["loss"])
    full, half = ends
    assert 0 < relative_distance(half, full) < 0.05
    # A tenth of what training has gained would be too much.
    assert abs(losses[1] - losses[0]) < 0.02 * (np.log(10) - losses[0])
    assert losses[0] < 0.9 * np.log(10)


def _parameters(context: TrialContext) -> dict[str, torch.Tensor]:
    model = context.model(1)
    return {name: each.detach() for name, each in model.named_parameters() if each.requires_grad}


def test_automatic_precision_is_float32_without_a_gpu_and_decides_the_key() -> None:
    assert resolve_precision("auto", "auto", CPU) == "float32"
    assert resolve_precision("bfloat16", "auto", CPU) == "bfloat16"
    assert replace(SPEC, precision="bfloat16").key != SPEC.key


@pytest.mark.parametrize(
    ("engine", "native", "precision"),
    [
        ("auto", True, "bfloat16"),
        ("bookkeeping", True, "bfloat16"),
        ("auto", False, "float32"),
        ("opacus", True, "float32"),
        ("loop", True, "bfloat16"),
    ],
)
def test_automatic_precision_on_a_gpu(
    engine: str, native: bool, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device", lambda _: torch.device("meta"))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    assert resolve_precision("auto", engine, torch.device("cuda")) == precision
