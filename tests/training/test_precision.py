"""bfloat16 in forward and backward passes changes little, and is taken where a GPU computes in it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.training.tiny_study import CPU, SPEC, Prepared

from dpsweep.gradients.precision import resolve_precision
from dpsweep.models.build import trainable_parameters
from dpsweep.training.trial import train_trial

# Noise and batches are drawn from the trial's key, which holds the precision: without noise
# and with the full batch, precision is all that differs.
FULL = replace(
    SPEC, optimizer="sgd", noise_multiplier=0.0, train_size=100, batch_size=100, physical_batch=100
)


def test_short_trial_ends_where_float32_ends(tiny: Prepared) -> None:
    context = tiny.context()
    initial = {
        f"epoch1/{name}": each.detach().clone().numpy()
        for name, each in trainable_parameters(context.model(1)).items()
    }
    ends, losses = [], []
    for precision in ("float32", "bfloat16"):
        spec = replace(FULL, steps=40, learning_rate=2.0, precision=precision)
        trial, epochs = train_trial(spec, context, None, 1e9)
        assert {each.dtype for each in epochs.values()} == {np.dtype("float32")}
        ends.append(np.concatenate([(epochs[name] - initial[name]).ravel() for name in initial]))
        losses.append(trial.record["loss"])
    full, half = ends
    assert 0 < np.linalg.norm(half - full) < 0.05 * np.linalg.norm(full)
    # A tenth of what training has gained would be too much.
    assert abs(losses[1] - losses[0]) < 0.02 * (np.log(10) - losses[0])
    assert losses[0] < 0.9 * np.log(10)


@pytest.mark.parametrize(
    ("setting", "engine", "native", "precision"),
    [
        ("auto", "auto", None, "float32"),
        ("bfloat16", "auto", None, "bfloat16"),
        ("auto", "auto", True, "bfloat16"),
        ("auto", "bookkeeping", True, "bfloat16"),
        ("auto", "auto", False, "float32"),
        ("auto", "opacus", True, "float32"),
        ("auto", "loop", True, "bfloat16"),
    ],
)
def test_automatic_precision(
    setting: str, engine: str, native: bool | None, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU that computes in bfloat16 or does not, and without one."""
    monkeypatch.setattr(torch.cuda, "device", lambda _: torch.device("meta"))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    device = CPU if native is None else torch.device("cuda")
    assert resolve_precision(setting, engine, device) == precision
