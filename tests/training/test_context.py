"""What the trials of a cell share, and that sharing changes no trial."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.training.tiny_study import prepare, specs_of, tiny_study

from dpsweep.data.resize import Resize
from dpsweep.privacy.calibration import calibrate
from dpsweep.study import Cell
from dpsweep.training.context import TrialContext
from dpsweep.training.trial import train_trial

CPU = torch.device("cpu")
CELL = Cell("digits_vit_method", 8.0, 1, "full", 1.0)


@pytest.mark.parametrize(
    "method", [{"kind": "lora", "rank": 2, "target_modules": ["qkv"]}, {"kind": "scratch"}]
)
def test_a_trial_does_not_depend_on_those_before_it(
    method: dict[str, object], tmp_path: Path
) -> None:
    study = tiny_study({}, method)
    study = study.model_copy(
        update={"sweeps": {"digits": study.sweeps["digits"].model_copy(update={"seeds": 3})}}
    )
    _, data, backbone = prepare(study, tmp_path)
    noise = calibrate(8.0, 1e-5, study.train_size("digits"), study.batch_size(CELL), 3)
    specs = specs_of(study, CELL, noise, data, backbone)

    def outcome(context: TrialContext, seed: int) -> dict[str, np.ndarray]:
        return train_trial(specs[0.003, seed], context, tmp_path / "checkpoint", 1e9)[1]

    make = partial(TrialContext, data, backbone, study.methods["method"], device=CPU)
    shared = make()
    for seed in (1, 3, 2, 1):
        alone, together = outcome(make(), seed), outcome(shared, seed)
        for name in alone:
            np.testing.assert_array_equal(together[name], alone[name])


def test_images_that_are_stored_small_reach_the_network_in_its_size(tmp_path: Path) -> None:
    study = tiny_study({}, {"kind": "film"})
    _, data, backbone = prepare(study, tmp_path)
    resize = Resize(size=20, interpolation="bicubic")
    small = replace(data, metadata=data.metadata.model_copy(update={"resize": resize}))
    context = TrialContext(small, backbone, study.methods["method"], device=CPU)
    batch, labels = context.batch(context.test, torch.tensor([3, 1]))
    assert labels.tolist() == [data.test_labels[3], data.test_labels[1]]
    assert batch.shape == (2, 1, 20, 20)
    image = Image.fromarray(data.test_inputs[1, :, :, 0]).resize((20, 20), Image.Resampling.BICUBIC)
    (mean,), (std,) = backbone.metadata.mean, backbone.metadata.std
    levels = 255 * (batch[1, 0].numpy() * std + mean)
    np.testing.assert_allclose(levels, np.asarray(image), rtol=0, atol=0.501)


def test_a_cell_compiles_once_and_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.compiler.reset()
    original, calls = torch.compile, []

    def counting(function: object, **arguments: object) -> object:
        calls.append(function)
        return original(function, backend="aot_eager", **arguments)

    monkeypatch.setattr(torch, "compile", counting)
    ends = {}
    for compiled in (False, True):
        study = tiny_study({"compile": compiled}, {"kind": "film"})
        _, data, backbone = prepare(study, tmp_path)
        noise = calibrate(float("inf"), 1e-5, study.train_size("digits"), study.batch_size(CELL), 3)
        (spec,) = specs_of(study, CELL, noise, data, backbone).values()
        assert spec.compile == compiled
        context = TrialContext(data, backbone, study.methods["method"], device=CPU)
        for _ in range(2):
            ends[compiled] = train_trial(spec, context, tmp_path / "checkpoint", 1e9)[1]
        assert len(calls) == compiled
    for name in ends[False]:
        np.testing.assert_allclose(ends[True][name], ends[False][name], atol=1e-5)
