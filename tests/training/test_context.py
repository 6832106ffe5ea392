"""The context that the trials of a cell share; it changes no result."""

from dataclasses import replace

import pytest
import torch
from tests.training.tiny_study import assert_equal, end

from dpsweep.models.build import trainable_parameters
from dpsweep.training.trial import train_trial

LORA = {"kind": "lora", "rank": 2, "target_modules": ["qkv"]}


@pytest.mark.parametrize("method", [LORA, {"kind": "scratch"}], ids=lambda each: each["kind"])
def test_a_trial_does_not_depend_on_earlier_trials(method, tiny):
    made = tiny.of({}, method, seeds=2)
    specs, shared = made.specs(steps=2), made.context()
    for seed in (1, 2, 1):
        spec = specs[0.003, seed]
        assert_equal(end(spec, shared), end(spec, made.context()))


METHODS = [*({"kind": kind} for kind in ("film", "all", "head", "scratch")), LORA]


@pytest.mark.parametrize("method", METHODS, ids=lambda each: each["kind"])
def test_a_trial_changes_only_the_parameters_of_its_method(method, tiny):
    made = tiny.of({}, method)
    context = made.context()
    model = context.model(1)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    spec = replace(made.spec(steps=3), noise_multiplier=0.5)
    trial, epochs = train_trial(spec, context, None, 1e9)
    trainable = set(trainable_parameters(model))
    assert {name.removeprefix("epoch1/") for name in epochs} == trainable
    moved = {
        name for name, value in model.named_parameters() if not torch.equal(value, before[name])
    }
    # With noise all change; some (such as keys of attention) have no gradient.
    assert moved == trainable
    assert trial.record["trainable_parameters"] == sum(before[name].numel() for name in trainable)
    assert method["kind"] not in ("all", "scratch") or trainable == set(before)
