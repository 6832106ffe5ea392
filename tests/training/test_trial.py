"""A trial: its key, its context, its precision and its evaluation."""

from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.training import tiny_study as tiny
from tests.training.tiny_study import CPU, SPEC, N, assert_equal, calibrate, end
from torch import Tensor, nn

from dpsweep.gradients.engines import autocast_dtype, resolve_precision
from dpsweep.models.build import trainable_parameters
from dpsweep.study import Cell, Study
from dpsweep.study.clipping import AutomaticClipping, FlatClipping, NoClipping
from dpsweep.study.fingerprints import trainer_fingerprint
from dpsweep.study.networks import LoRA
from dpsweep.training.context import Examples
from dpsweep.training.physical import PhysicalBatch
from dpsweep.training.trial import TrialSpec, evaluate, specify, train_trial

PROBLEM = "digits_vit_method"
KEYED = replace(tiny.SPEC, classes="ten", epochs=2)


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
    changed = replace(KEYED, **{field: another(getattr(KEYED, field))})
    assert changed.key != KEYED.key


# Keys that renamed settings of a study, or titles, must not change.
TWO = LoRA(kind="lora", rank=2, target_modules=["qkv"], title="Two", engine="vmap")
STORED: dict[str, dict[str, Any]] = {
    "39d025249153b66e6fbc232d50e3af940a8ead789a8c8e48eae119bca1d559fe": {},
    "bc04b32cafa0fd2ad98ada1aaf86f2a7309f01684ad8344009da04e6ee2e1c85": {
        "clipping": AutomaticClipping()
    },
    "662b00183848aa32f3bea3dd6eb38a7689b4a8e6fb08e0d2941c6df8d3b5dbb3": {"clipping": NoClipping()},
    "5933fa5aa92f58b16d43357b1a0240e686e2afe1404457c90630fefe87d98349": {"optimizer": "sgd"},
    "3449378cd1c3afbeede443aa0ee8f5990f409987bea965e3c775b4999c2b8f06": {"method": TWO.identity()},
}


@pytest.mark.parametrize("key", STORED)
def test_keys_of_stored_trials_stay_valid(key):
    """The key of a trial may change only with the trainer version."""
    assert replace(KEYED, **STORED[key]).key == key


def keys_with(optimizers: dict[str, Any], *names: str) -> list[str]:
    """Return the keys of trials with some optimizers of a study."""
    study = Study.model_validate(
        tiny.tiny_sections({}, {"kind": "film"}) | {"optimizers": optimizers}
    )
    return [replace(KEYED, optimizer=study.optimizer(name).identity()).key for name in names]


def test_the_key_has_the_settings_of_an_optimizer_and_not_its_name():
    """Sections that only state the defaults of Adam and SGD keep the keys of stored trials."""
    keys = [KEYED.key, replace(KEYED, optimizer="sgd").key]
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

    def key(data, device="cpu"):
        there = torch.device(device)
        return specify(study, cell, noise, data, backbone, there, learning_rate=0.1, seed=1).key

    renamed = data.metadata.model_copy(update={"classes": [*data.metadata.classes[:-1], "nine"]})
    other = key(replace(data, metadata=renamed)) if what == "classes" else key(data, "cuda")
    assert other != key(data)


def test_an_engine_is_set_for_a_study_a_method_or_a_sweep():
    """The engine determines a trial; the section that sets it does not."""

    def of(training, method, own):
        sections = tiny.tiny_sections({"engine": training}, {"kind": "film", "engine": method})
        sections["sweeps"]["digits"]["engine"] = own
        study = Study.model_validate(sections)
        return study.engine(PROBLEM), trainer_fingerprint(study, PROBLEM)

    assert of("loop", "vmap", "bookkeeping")[0] == "bookkeeping"
    assert of("loop", "vmap", None)[0] == "vmap"
    assert of("loop", None, None)[0] == "loop"
    assert of("vmap", None, None) == of("auto", "vmap", None) == of("auto", "loop", "vmap")
    assert of("auto", None, None)[1] != of("vmap", None, None)[1]


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


CLASSES, NAN, INF = 4, float("nan"), float("inf")
LABELS = torch.tensor([0, 0, 0, 0, 1, 1, 3])


class Fixed(nn.Module):
    """A network that returns its inputs as logits, and records the precision of a GPU's convolutions."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(weight))

    def forward(self, logits: Tensor) -> Tensor:
        self.precision = torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
        return logits * self.weight


def measured(logits: Tensor, weight: float = 1.0, at_once: int = 512) -> dict[str, Any]:
    def batch(examples, rows):
        return examples.inputs[examples.rows[rows]], examples.labels[rows]

    context: Any = SimpleNamespace(
        device=torch.device("cpu"),
        classes=CLASSES,
        evaluated_at_once=PhysicalBatch(at_once),
        batch=batch,
    )
    model = Fixed(weight)
    found = evaluate(model, context, Examples(logits, LABELS, torch.arange(len(LABELS))))
    assert model.precision == "ieee"
    return found


def saying(*classes: int) -> Tensor:
    return 5 * torch.eye(CLASSES)[list(classes)]


def test_accuracies() -> None:
    # Class 0: three of four, class 1: none of two, class 3: its one; class 2 has no example.
    found = measured(saying(0, 0, 0, 1, 0, 2, 3))
    assert found["accuracy"] == pytest.approx(4 / 7)
    assert found["macro_accuracy"] == pytest.approx((0.75 + 0 + 1) / 3)
    np.testing.assert_allclose(found["per_class_accuracy"], [0.75, 0, np.nan, 1])
    assert not found["diverged"]
    right, wrong = -np.log(np.exp(5) / (np.exp(5) + 3)), -np.log(1 / (np.exp(5) + 3))
    assert found["loss"] == pytest.approx((4 * right + 3 * wrong) / 7, rel=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_the_batch_size_of_an_evaluation_does_not_matter(size):
    logits = torch.randn(7, CLASSES, generator=torch.Generator().manual_seed(0))
    whole, found = measured(logits), measured(logits, at_once=size)
    assert found["accuracy"] == whole["accuracy"]
    assert found["loss"] == pytest.approx(whole["loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("places", "weight", "accuracy"),
    [({(0, 2): NAN, (4, 1): INF}, 1.0, 5 / 7), ({}, NAN, 0.0)],
    ids=["outputs", "parameters"],
)
def test_values_that_are_not_finite_count_as_wrong_and_diverged(places, weight, accuracy):
    logits = saying(*LABELS.tolist())
    for place, value in places.items():
        logits[place] = value
    found = measured(logits, weight)
    assert found["accuracy"] == pytest.approx(accuracy)
    assert found["diverged"]
