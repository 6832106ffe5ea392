"""bfloat16 in forward and backward passes: its small effect, and when it is used."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.training.tiny_study import CPU, SPEC, end

from dpsweep.gradients.precision import autocast_dtype, resolve_precision


def test_bfloat16_changes_a_short_trial_little(tiny):
    context = tiny.context()
    # The key, and so noise and batches, depends on the precision: compare without noise, on full batches.
    full = {"optimizer": "sgd", "noise_multiplier": 0.0, "steps": 8}
    full |= {"train_size": 100, "batch_size": 100}
    none, exact, half = (
        end(replace(SPEC, **full, learning_rate=rate, precision=precision), context)
        for rate, precision in ((0.0, "float32"), (2.0, "float32"), (2.0, "bfloat16"))
    )
    moved, difference = (
        np.concatenate([(exact[name] - other[name]).ravel() for name in exact if "epoch" in name])
        for other in (none, half)
    )
    assert moved.dtype == np.float32
    assert 0 < np.linalg.norm(difference) < 0.05 * np.linalg.norm(moved)


@pytest.mark.parametrize(
    ("setting", "engine", "native", "precision"),
    [
        ("auto", "auto", None, "float32"),
        ("bfloat16", "auto", None, "bfloat16"),
        ("auto", "auto", True, "bfloat16"),
        ("auto", "auto", False, "float32"),
        ("auto", "opacus", True, "float32"),
    ],
)
def test_automatic_precision(setting, engine, native, precision, monkeypatch):
    """Try a GPU with native bfloat16, one without, and no GPU."""
    monkeypatch.setattr(torch.cuda, "device", lambda _: torch.device("meta"))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    device = CPU if native is None else torch.device("cuda")
    assert resolve_precision(setting, engine, device) == precision
    assert autocast_dtype(precision) is (None if precision == "float32" else torch.bfloat16)
