"""The key of a trial: it changes with everything that determines the result, and with nothing else."""

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from tests.training import tiny_study as tiny
from tests.training.tiny_study import N, calibrate

from dpsweep.data.prepared import PreparedDataset
from dpsweep.study import Cell, Study
from dpsweep.study.clipping import AutomaticClipping, FlatClipping, NoClipping
from dpsweep.study.fingerprints import trainer_fingerprint
from dpsweep.study.methods import LoRA
from dpsweep.training.trial import TrialSpec, specify

PROBLEM = "digits_vit_method"
SPEC = replace(tiny.SPEC, classes="ten", epochs=2)


def another(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, FlatClipping):
        return FlatClipping(2 * value.bound)
    if isinstance(value, dict):
        return value | {"kind": "another"}
    return value + "x" if isinstance(value, str) else value + 1


@pytest.mark.parametrize("field", [field.name for field in fields(TrialSpec)])
def test_every_field_is_in_the_key(field):
    changed = replace(SPEC, **{field: another(getattr(SPEC, field))})
    assert changed.key != SPEC.key


# Keys that renamed settings of a study, or titles, must not change.
LORA = LoRA(kind="lora", rank=2, target_modules=["qkv"], title="Two", engine="vmap")
STORED: dict[str, dict[str, Any]] = {
    "39d025249153b66e6fbc232d50e3af940a8ead789a8c8e48eae119bca1d559fe": {},
    "bc04b32cafa0fd2ad98ada1aaf86f2a7309f01684ad8344009da04e6ee2e1c85": {
        "clipping": AutomaticClipping()
    },
    "662b00183848aa32f3bea3dd6eb38a7689b4a8e6fb08e0d2941c6df8d3b5dbb3": {"clipping": NoClipping()},
    "5933fa5aa92f58b16d43357b1a0240e686e2afe1404457c90630fefe87d98349": {"optimizer": "sgd"},
    "3449378cd1c3afbeede443aa0ee8f5990f409987bea965e3c775b4999c2b8f06": {"method": LORA.identity()},
}


@pytest.mark.parametrize("key", STORED)
def test_keys_of_stored_trials_stay_valid(key):
    """The key of a trial may change only with the trainer version."""
    assert replace(SPEC, **STORED[key]).key == key


def keys_with(optimizers: dict[str, Any], *names: str) -> list[str]:
    """Return the keys of trials with some optimizers of a study."""
    study = Study.model_validate(
        tiny.tiny_sections({}, {"kind": "film"}) | {"optimizers": optimizers}
    )
    return [replace(SPEC, optimizer=study.optimizer(name).identity()).key for name in names]


def test_the_key_has_the_settings_of_an_optimizer_and_not_its_name():
    """Sections that only state the defaults of Adam and SGD keep the keys of stored trials."""
    keys = [SPEC.key, replace(SPEC, optimizer="sgd").key]
    assert keys_with({}, "adam", "sgd") == keys
    said = {
        "adam": {"kind": "adam", "betas": [0.9, 0.999], "eps": 1e-8, "schedule": "constant"},
        "plain": {"kind": "sgd", "title": "Plain", "momentum": 0, "nesterov": False, "warmup": 0},
    }
    assert keys_with(said, "adam", "plain") == keys
    variants: list[dict[str, Any]] = [
        *({"kind": "adam"}, {"kind": "adam", "betas": [0.9, 0.99]}, {"kind": "adam", "eps": 1e-6}),
        *({"kind": "adamw"}, {"kind": "adamw", "weight_decay": 0.1}),
        *({"kind": "adam-bc"}, {"kind": "adam-bc", "floor": 0.1}),
        *({"kind": "sgd"}, {"kind": "sgd", "momentum": 0.9}),
        {"kind": "sgd", "momentum": 0.9, "nesterov": True},
        *({"kind": "torch", "name": "RMSprop"}, {"kind": "torch", "name": "Adagrad"}),
        {"kind": "torch", "name": "RMSprop", "arguments": {"alpha": 0.9}},
        *({"kind": "adam", "schedule": each} for each in ("cosine", "linear")),
        {"kind": "adam", "schedule": "linear", "warmup": 0.1},
        *({"kind": "adam", "average": {"kind": "ema", "decay": each}} for each in (0.9, 0.99)),
        {"kind": "adam", "average": {"kind": "tail", "share": 0.2}},
    ]
    named = {f"o{index}": each for index, each in enumerate(variants)}
    keys = keys_with(named, *named)
    assert len(set(keys)) == len(variants)
    titled = {f"x{name}": each | {"title": "Another"} for name, each in named.items()}
    assert keys_with(titled, *titled) == keys


@pytest.mark.parametrize("what", ["classes", "device"])
def test_other_classes_or_another_device_give_another_key(tiny, what):
    study, _, data, backbone = tiny.of({"precision": "float32"}, {"kind": "film"})
    cell, noise = Cell(PROBLEM, 8.0, 1, N, 1.0), calibrate(8.0, 1e-5, N, N, 1)

    def key(data: PreparedDataset, device: str = "cpu") -> str:
        there = torch.device(device)
        return specify(study, cell, noise, data, backbone, there, learning_rate=0.1, seed=1).key

    renamed = data.metadata.model_copy(update={"classes": [*data.metadata.classes[:-1], "nine"]})
    other = key(replace(data, metadata=renamed)) if what == "classes" else key(data, "cuda")
    assert other != key(data)


def test_an_engine_is_set_for_a_study_a_method_or_a_sweep():
    """The engine determines a trial; the section that sets it does not."""

    def of(training: str, method: str | None, own: str | None) -> tuple[str, str]:
        sections = tiny.tiny_sections({"engine": training}, {"kind": "film", "engine": method})
        sections["sweeps"]["digits"]["engine"] = own
        study = Study.model_validate(sections)
        return study.engine(PROBLEM), trainer_fingerprint(study, PROBLEM)

    assert of("loop", "vmap", "bookkeeping")[0] == "bookkeeping"
    assert of("loop", "vmap", None)[0] == "vmap"
    assert of("loop", None, None)[0] == "loop"
    assert of("vmap", None, None) == of("auto", "vmap", None) == of("auto", "loop", "vmap")
    assert of("auto", None, None)[1] != of("vmap", None, None)[1]
