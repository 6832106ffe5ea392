"""From the study to the stored record, a trial is Algorithm 1 of the paper: an independent loop agrees.

The loop below knows the study, the paper and how streams are named. It takes one example at a time, in
float64, and shares no code with sampling, clipping, noise, updates, specification or evaluation.
"""

import copy
import hashlib
import hmac
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import balanced_accuracy_score
from tests.training.tiny_study import N, Prepared, prepare, specs_of, tiny_study
from torch import nn

from dpsweep.data.prepared import PreparedDataset
from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.stored import write_calibration
from dpsweep.study import Study
from dpsweep.training.specification import TrialSpec, cell_noise
from dpsweep.training.trial import train_trial

B, EPOCHS, STEPS, GAMMA, RATE = 30, 1, 9, 0.3, 0.5


def study(bound: float | str, optimizer: str, epsilon: float) -> Study:
    return tiny_study(
        {"automatic_clipping_gamma": GAMMA},
        {"kind": "film"},
        epsilon=[epsilon],
        epochs=[EPOCHS],
        batch_size=[B],
        clipping_bound=bound if isinstance(bound, str) else [bound],
        learning_rate=[RATE],
        optimizer=optimizer,
        seeds=2,
    )


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return prepare(study(1.0, "sgd", 8.0), tmp_path_factory.mktemp("reference"))


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


class Reference:
    """Trains a copy of a model as the paper says."""

    def __init__(
        self,
        model: nn.Module,
        data: PreparedDataset,
        spec: TrialSpec,
        chosen: Study,
        bound: float | str,
    ):
        (sweep,) = chosen.sweeps.values()
        self.model = copy.deepcopy(model).double()
        self.parameters = {k: v for k, v in self.model.named_parameters() if v.requires_grad}
        self.bound, self.key = bound, spec.key
        self.images = torch.from_numpy(np.array(data.train_inputs)).permute(0, 3, 1, 2).double()
        self.test = torch.from_numpy(np.array(data.test_inputs)).permute(0, 3, 1, 2).double()
        self.labels = torch.from_numpy(np.array(data.train_labels))
        self.norms: list[float] = []
        epsilon = sweep.epsilon[0]
        assert round(EPOCHS * N / B) == STEPS
        delta = chosen.privacy.delta
        private = math.isfinite(epsilon)
        sigma = calibrate(epsilon, delta, N, B, STEPS).noise_multiplier if private else 0.0
        self.sigma = sigma
        optimizers = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
        self.optimizer = optimizers[sweep.optimizer](self.parameters.values(), lr=RATE)

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
        for each in self.parameters.values():
            piece = total[start : start + each.numel()] / B
            each.grad = torch.from_numpy(piece).view_as(each)
            start += each.numel()
        self.optimizer.step()


@pytest.mark.parametrize(
    ("bound", "optimizer", "epsilon"),
    [
        (0.7, "sgd", 8.0),
        (5.0, "adam", 2.0),
        ("automatic", "sgd", 4.0),
        ("none", "sgd", math.inf),
    ],
)
def test_a_trial_is_the_algorithm_of_the_paper(
    bound: float | str, optimizer: str, epsilon: float, prepared: Prepared
) -> None:
    chosen = study(bound, optimizer, epsilon)
    (cell,) = chosen.sweep_cells("digits")
    _, paths, data, backbone = prepared
    calibration = calibrate(epsilon, chosen.privacy.delta, N, B, STEPS)
    write_calibration(paths.noise(chosen, "digits", epsilon, EPOCHS, B), calibration)
    noise = cell_noise(chosen, paths, cell)
    context = prepared._replace(study=chosen).context()
    spec = specs_of(chosen, cell, noise, data, backbone)[RATE, 2]
    reference = Reference(context.model(2), data, spec, chosen, bound)
    for step in range(STEPS):
        reference.step(step)
    trial, epochs = train_trial(spec, context, None, 1e9)
    scale = max(float(each.detach().abs().max()) for each in reference.parameters.values())
    for name, wanted in reference.parameters.items():
        found = torch.from_numpy(epochs[f"epoch{EPOCHS}/{name}"]).double()
        torch.testing.assert_close(found, wanted.detach(), rtol=0, atol=2e-5 * scale)
    check_record(trial.record, reference, data)


def check_record(record: dict[str, Any], reference: Reference, data: PreparedDataset) -> None:
    labels = np.array(data.test_labels)
    with torch.no_grad():
        logits = reference.logits(reference.test)
    chosen = logits.argmax(dim=1).numpy()
    # float32 may decide for the other class where two logits are all but equal.
    best = logits.topk(2).values
    close = (best[:, 0] - best[:, 1] < 1e-4 * logits.abs().amax(dim=1)).numpy()
    assert close.mean() < 0.02
    assert record["accuracy"] == pytest.approx((chosen == labels).mean(), abs=close.mean() + 1e-9)
    share = max(close[labels == each].mean() for each in np.unique(labels))
    macro = balanced_accuracy_score(labels, chosen)
    assert record["macro_accuracy"] == pytest.approx(macro, abs=share + 1e-9)
    assert record["selection_accuracy"] == record["macro_accuracy"]
    loss = F.cross_entropy(logits, torch.from_numpy(labels))
    assert record["loss"] == pytest.approx(float(loss), rel=1e-4)
    if reference.bound not in ("automatic", "none"):
        clipped = np.mean(np.array(reference.norms) > float(reference.bound))
        assert 0 < record["clipped_fraction"] == pytest.approx(clipped, abs=1e-9)
