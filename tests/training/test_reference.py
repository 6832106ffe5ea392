"""An independent loop for Algorithm 1 of the paper agrees with a trial, from the study to the record.

The loop below uses only the study, the paper and the names of streams. It takes one example at a time, in
float64, and shares no code with sampling, clipping, noise, updates, schedules, averages, specification or
evaluation.
"""

import copy
import hashlib
import hmac
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import balanced_accuracy_score
from tests.training.tiny_study import N, Prepared, calibrate, tiny_sections
from torch import nn

from dpsweep.data.prepared import PreparedDataset
from dpsweep.study import Study
from dpsweep.training.cell import OpenCell
from dpsweep.training.trial import train_trial

B, EPOCHS, STEPS, GAMMA, RATE = 30, 1, 9, 0.3, 0.5


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adam": {"kind": "adam"},
    "sgd": {"kind": "sgd"},
    "heavy": {"kind": "sgd", "momentum": 0.9, "schedule": "linear"},
    "ahead": {"kind": "sgd", "momentum": 0.5, "nesterov": True}
    | {"average": {"kind": "ema", "decay": 0.7}},
    "decayed": {"kind": "adamw", "weight_decay": 0.3, "betas": [0.8, 0.95]}
    | {"schedule": "cosine", "warmup": 0.3},
    "corrected": {"kind": "adam-bc", "floor": 0.5, "average": {"kind": "tail", "share": 0.3}},
}


def study(bound: float | str, optimizer: str, epsilon: float) -> Study:
    sections = tiny_sections(
        {"automatic_clipping_gamma": GAMMA},
        {"kind": "film"},
        epsilon=[epsilon],
        epochs=[EPOCHS],
        batch_size=[B],
        clipping_bound=bound if isinstance(bound, str) else [bound],
        learning_rate=[RATE],
        optimizer=optimizer,
        physical_batch=7,
        seeds=2,
    )
    defined = {name: each for name, each in OPTIMIZERS.items() if each != {"kind": name}}
    return Study.model_validate(sections | {"optimizers": defined})


def philox(key: str, use: str, step: int) -> np.random.Generator:
    name = json.dumps([key, use], separators=(",", ":")).encode()
    digest = hmac.new(b"", name, hashlib.sha256).digest()
    bits = np.random.Philox(key=int.from_bytes(digest[:16], "little"), counter=step << 128)
    return np.random.Generator(bits)


def factor(bound: float | str, norm: float) -> float:
    if bound == "none":
        return 1.0
    if bound == "automatic":
        return 1 / (norm + GAMMA)
    return min(1 / float(bound), 1 / norm)


class Update:
    """The update after the noise, for one parameter, as the papers define it."""

    def __init__(self, settings: dict[str, Any], sigma: float) -> None:
        self.settings, self.noise = settings, (sigma / B) ** 2
        self.first: Any = 0.0
        self.second: Any = 0.0
        self.past: list[Any] = []

    def rate(self, step: int) -> float:
        """Return the learning rate of a step (from 1): it rises, then falls to 0."""
        rising = round(self.settings.get("warmup", 0) * STEPS)
        if step <= rising:
            return RATE * step / (rising + 1)
        gone = (step - rising - 1) / (STEPS - rising)
        falls = {"linear": 1 - gone, "cosine": 0.5 + 0.5 * math.cos(math.pi * gone)}
        return RATE * falls.get(self.settings.get("schedule", "constant"), 1.0)

    def __call__(self, value: Any, gradient: Any, step: int) -> Any:
        settings, rate = self.settings, self.rate(step)
        if settings["kind"] == "sgd":
            momentum = settings.get("momentum", 0)
            self.first = momentum * self.first + gradient
            ahead = gradient + momentum * self.first
            value = value - rate * (ahead if settings.get("nesterov") else self.first)
        else:
            one, two = settings.get("betas", [0.9, 0.999])
            self.first = one * self.first + (1 - one) * gradient
            self.second = two * self.second + (1 - two) * gradient**2
            mean, square = self.first / (1 - one**step), self.second / (1 - two**step)
            if settings["kind"] == "adam-bc":
                square = np.maximum(square - self.noise, settings["floor"] * self.noise)
            if settings["kind"] == "adamw":
                value = value * (1 - rate * settings["weight_decay"])
            value = value - rate * mean / (np.sqrt(square) + 1e-8)
        self.past.append(value)
        return value

    def end(self) -> Any:
        """Return the parameter to measure: the last one, or the average."""
        match self.settings.get("average"):
            case {"kind": "ema", "decay": decay}:
                weights = [decay ** (STEPS - step) for step in range(1, STEPS + 1)]
                return np.average(self.past, axis=0, weights=weights)
            case {"kind": "tail", "share": share}:
                return np.mean(self.past[-math.ceil(share * STEPS) :], axis=0)
        return self.past[-1]


class Reference:
    """Training of a copy of a model, as in the paper."""

    def __init__(
        self, model: nn.Module, data: PreparedDataset, key: str, bound: float | str, update: Update
    ):
        self.model = copy.deepcopy(model).double()
        self.parameters = {k: v for k, v in self.model.named_parameters() if v.requires_grad}
        self.key, self.bound, self.sigma = key, bound, update.noise**0.5 * B
        self.images, self.test = (
            torch.from_numpy(np.array(each)).permute(0, 3, 1, 2).double()
            for each in (data.train_inputs, data.test_inputs)
        )
        self.labels = torch.from_numpy(np.array(data.train_labels))
        self.norms: list[float] = []
        self.updates = {name: copy.deepcopy(update) for name in self.parameters}

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model((images / 255 - 0.5) / 0.5)
        return logits

    def step(self, step: int) -> None:
        total = np.zeros(sum(each.numel() for each in self.parameters.values()))
        drawn = philox(self.key, "sampling", step + 1).integers(N, size=N)
        for row in np.flatnonzero(drawn < B):
            loss = F.cross_entropy(self.logits(self.images[[row]]), self.labels[[row]])
            gradient = torch.autograd.grad(loss, list(self.parameters.values()))
            flat = torch.cat([each.flatten() for each in gradient]).numpy()
            norm = float(np.linalg.norm(flat))
            self.norms.append(norm)
            total += factor(self.bound, norm) * flat
        total += self.sigma * philox(self.key, "noise", step).standard_normal(len(total))
        start = 0
        for name, each in self.parameters.items():
            piece = total[start : start + each.numel()].reshape(each.shape) / B
            start += each.numel()
            self.load(name, self.updates[name](each.detach().numpy().copy(), piece, step + 1))

    def load(self, name: str, value: Any) -> None:
        with torch.no_grad():
            self.parameters[name].copy_(torch.from_numpy(np.asarray(value)))


@pytest.mark.parametrize(
    ("bound", "optimizer", "epsilon"),
    [
        (5.0, "adam", 2.0),
        ("none", "sgd", math.inf),
        (0.7, "heavy", 8.0),
        ("automatic", "ahead", 4.0),
        (5.0, "decayed", 8.0),
        (0.7, "corrected", 8.0),
    ],
)
def test_a_trial_is_the_algorithm_of_the_paper(
    bound: float | str, optimizer: str, epsilon: float, tiny: Prepared, tmp_path: Path
) -> None:
    """The batches of the trial consist of several micro-batches."""
    chosen = study(bound, optimizer, epsilon)
    (cell,) = chosen.sweep_cells("digits")
    data = tiny.data
    opened = OpenCell.open(chosen, tiny._replace(study=chosen).ready(tmp_path).paths, cell)
    context, spec = opened.context, opened.specs[RATE, 2]
    sigma = calibrate(epsilon, chosen.privacy.delta, N, B, STEPS).noise_multiplier
    update = Update(OPTIMIZERS[optimizer], sigma)
    reference = Reference(context.model(2), data, spec.key, bound, update)
    assert round(EPOCHS * N / B) == STEPS
    for step in range(STEPS):
        reference.step(step)
    trial, epochs = train_trial(spec, context, None, 1e9)
    scale = max(float(each.detach().abs().max()) for each in reference.parameters.values())
    averaged = "average" in OPTIMIZERS[optimizer]
    assert any(name.startswith("average/") for name in epochs) == averaged
    last = {name: each.detach().clone() for name, each in reference.parameters.items()}
    for name, update in reference.updates.items():
        reference.load(name, update.end())
        ends = {f"epoch{EPOCHS}/": last[name]}
        ends |= {"average/": reference.parameters[name].detach()} if averaged else {}
        for place, wanted in ends.items():
            found = torch.from_numpy(epochs[place + name]).double()
            torch.testing.assert_close(found, wanted, rtol=0, atol=2e-5 * scale)
    check_record(trial.record, reference, data)
    for name, value in last.items():
        reference.load(name, value.numpy())
    check_accuracy(trial.record, "last_", reference, data)


def check_accuracy(
    record: dict[str, Any], which: str, reference: Reference, data: PreparedDataset
) -> torch.Tensor:
    labels = np.array(data.test_labels)
    with torch.no_grad():
        logits = reference.logits(reference.test)
    chosen = logits.argmax(dim=1).numpy()
    # float32 may choose the other class if two logits are nearly equal.
    best = logits.topk(2).values
    close = (best[:, 0] - best[:, 1] < 1e-4 * logits.abs().amax(dim=1)).numpy()
    assert close.mean() < 0.02
    assert record[f"{which}accuracy"] == pytest.approx(
        (chosen == labels).mean(), abs=close.mean() + 1e-9
    )
    share = max(close[labels == each].mean() for each in np.unique(labels))
    macro = balanced_accuracy_score(labels, chosen)
    assert record[f"{which}macro_accuracy"] == pytest.approx(macro, abs=share + 1e-9)
    return logits


def check_record(record: dict[str, Any], reference: Reference, data: PreparedDataset) -> None:
    logits = check_accuracy(record, "", reference, data)
    labels = np.array(data.test_labels)
    assert record["selection_accuracy"] == record["macro_accuracy"]
    loss = F.cross_entropy(logits, torch.from_numpy(labels))
    assert record["loss"] == pytest.approx(float(loss), rel=1e-4)
    if reference.bound not in ("automatic", "none"):
        clipped = np.mean(np.array(reference.norms) > float(reference.bound))
        assert 0 < record["clipped_fraction"] == pytest.approx(clipped, abs=1e-9)
