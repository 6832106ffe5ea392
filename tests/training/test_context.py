"""What the trials of a cell share, and that sharing changes no trial."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tests.training.tiny_study import assert_equal, end, prepare, tiny_study

from dpsweep.data.resize import Resize


@pytest.mark.parametrize(
    "method", [{"kind": "lora", "rank": 2, "target_modules": ["qkv"]}, {"kind": "scratch"}]
)
def test_a_trial_does_not_depend_on_those_before_it(
    method: dict[str, object], tmp_path: Path
) -> None:
    made = prepare(tiny_study({}, method, seeds=3), tmp_path)
    specs, shared = made.specs(steps=3), made.context()
    for seed in (1, 3, 2, 1):
        spec = specs[0.003, seed]
        assert_equal(end(spec, shared), end(spec, made.context()))


def test_images_that_are_stored_small_reach_the_network_in_its_size(tmp_path: Path) -> None:
    made = prepare(tiny_study({}, {"kind": "film"}), tmp_path)
    data, backbone = made.data, made.backbone
    resize = Resize(size=20, interpolation="bicubic")
    small = replace(data, metadata=data.metadata.model_copy(update={"resize": resize}))
    context = made._replace(data=small).context()
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
        made = prepare(tiny_study({"compile": compiled}, {"kind": "film"}), tmp_path)
        # Noise is drawn from the trial's key, which holds whether it is compiled.
        spec = replace(made.spec(steps=3), noise_multiplier=0.0)
        assert spec.compile == compiled
        context = made.context()
        for _ in range(2):
            ends[compiled] = end(spec, context)
        assert len(calls) == compiled
    for name in ends[False]:
        np.testing.assert_allclose(ends[True][name], ends[False][name], atol=1e-5)
