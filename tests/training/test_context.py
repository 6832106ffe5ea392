"""What the trials of a cell share, and that sharing changes no trial."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.training.tiny_study import Prepared, assert_equal, end

from dpsweep.config.clipping import FlatClipping, NoClipping
from dpsweep.data.resize import Resize
from dpsweep.models.build import head_parameter_names, trainable_parameters
from dpsweep.training.trial import train_trial


@pytest.mark.parametrize(
    "method", [{"kind": "lora", "rank": 2, "target_modules": ["qkv"]}, {"kind": "scratch"}]
)
def test_a_trial_does_not_depend_on_those_before_it(
    method: dict[str, object], tiny: Prepared
) -> None:
    made = tiny.of({}, method, seeds=3)
    specs, shared = made.specs(steps=3), made.context()
    for seed in (1, 3, 2, 1):
        spec = specs[0.003, seed]
        assert_equal(end(spec, shared), end(spec, made.context()))


def test_images_that_are_stored_small_reach_the_network_in_its_size(tiny: Prepared) -> None:
    data, backbone = tiny.data, tiny.backbone
    resize = Resize(size=20, interpolation="bicubic")
    small = replace(data, metadata=data.metadata.model_copy(update={"resize": resize}))
    context = tiny._replace(data=small).context()
    batch, labels = context.batch(context.test, torch.tensor([3, 1]))
    assert labels.tolist() == [data.test_labels[3], data.test_labels[1]]
    assert batch.shape == (2, 1, 20, 20)
    image = Image.fromarray(data.test_inputs[1, :, :, 0]).resize((20, 20), Image.Resampling.BICUBIC)
    (mean,), (std,) = backbone.metadata.mean, backbone.metadata.std
    levels = 255 * (batch[1, 0].numpy() * std + mean)
    np.testing.assert_allclose(levels, np.asarray(image), rtol=0, atol=0.501)


def test_a_cell_compiles_once_and_computes_the_same(
    tiny: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.compiler.reset()
    original, calls = torch.compile, []

    def counting(function: object, **arguments: object) -> object:
        calls.append(function)
        return original(function, backend="eager", **arguments)

    monkeypatch.setattr(torch, "compile", counting)
    ends = {}
    for compiled in (False, True):
        made = tiny.of({"compile": compiled}, {"kind": "film"})
        # Noise is drawn from the trial's key, which holds whether it is compiled.
        spec = replace(made.spec(steps=3), noise_multiplier=0.0)
        assert spec.compile == compiled
        context = made.context()
        for _ in range(2):
            ends[compiled] = end(spec, context)
        assert len(calls) == compiled
    for name in ends[False]:
        np.testing.assert_allclose(ends[True][name], ends[False][name], atol=1e-5)


METHODS: list[dict[str, Any]] = [
    *({"kind": kind} for kind in ("film", "all", "head", "scratch")),
    {"kind": "lora", "rank": 2, "target_modules": ["qkv"]},
]


@pytest.mark.parametrize("method", METHODS, ids=lambda each: each["kind"])
@pytest.mark.parametrize("noise", [0.5, 0.0])
def test_a_trial_moves_what_its_method_trains_and_nothing_else(
    method: dict[str, Any], noise: float, tiny: Prepared
) -> None:
    made = tiny.of({}, method)
    context = made.context()
    model = context.model(1)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    clipping = FlatClipping(1.0) if noise else NoClipping()
    spec = replace(made.spec(steps=3), noise_multiplier=noise, clipping=clipping)
    trial, epochs = train_trial(spec, context, None, 1e9)
    trainable = set(trainable_parameters(model))
    assert {name.removeprefix("epoch1/") for name in epochs} == trainable
    moved = {
        name for name, value in model.named_parameters() if not torch.equal(value, before[name])
    }
    # Few parameters (keys of attention, say) have no gradient; with noise all move.
    head = head_parameter_names(model)
    assert moved == trainable if noise else head <= moved <= trainable
    assert trial.record["trainable_parameters"] == sum(before[name].numel() for name in trainable)
    assert method["kind"] not in ("all", "scratch") or trainable == set(before)
