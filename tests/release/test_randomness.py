"""The secret, the random stream and the examples of every part of a release."""

import json
import logging
import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.release.releases import FIXED, PRIVATE, release, study
from tests.training.test_features import with_weights
from tests.training.tiny_study import N

from dpsweep.data.prepared import PreparedDataset
from dpsweep.models.backbone import write_backbone
from dpsweep.models.build import build_model, trainable_parameters
from dpsweep.models.preprocess import make_preprocess
from dpsweep.privacy import Sampling
from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.tuning import TuningNoise, calibrate_tuning, gaussian_profile, total_epsilon
from dpsweep.release import CERTIFICATE, FROZEN, TRAINED
from dpsweep.release import train as release_training
from dpsweep.release.certificate import Candidate, epsilon_by_pld
from dpsweep.release.train import TrainedModel, train_release
from dpsweep.study.datasets import held_out_rows
from dpsweep.study.paths import Paths
from dpsweep.training import randomness, trial
from dpsweep.training.context import TrialContext

LONG = {"epochs": [3, 4], "learning_rate": [0.03, 0.1], "epsilon": 50.0}
"""Settings that learn enough to give different accuracies."""
TUNED = PRIVATE | LONG
HELD_OUT = held_out_rows(N, TUNED["holdout_share"])


def trained(section: dict[str, Any], paths: Paths) -> Any:
    made = study(section)
    return train_release(made, paths)


class Recorded:
    """A recorder of the secrets, streams and examples that a release uses; the secrets are numbered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.secrets: list[bytes] = []
        self.streams: list[tuple[str, bytes]] = []
        self.evaluated: list[str] = []
        self.trained_on: set[int] = set()
        # Each test gives the same secrets again.
        monkeypatch.setattr(randomness, "_USERS", {})
        monkeypatch.setattr(release_training, "new_secret", self._new_secret)
        monkeypatch.setattr(randomness, "stream_key", self._stream_key(randomness.stream_key))
        for module in (release_training, trial):
            monkeypatch.setattr(module, "evaluate", self._evaluate(module.evaluate))
        batch = TrialContext.batch

        def gathered(context, examples, rows, *views):
            if examples is context.train:
                self.trained_on |= set(examples.rows[rows].tolist())
            return batch(context, examples, rows, *views)

        monkeypatch.setattr(TrialContext, "batch", gathered)

    def _new_secret(self) -> bytes:
        self.secrets.append(f"secret {len(self.secrets)}".encode())
        return self.secrets[-1]

    def _stream_key(self, stream_key: Any) -> Any:
        def named(*parts, secret=b""):
            self.streams.append((str(parts[-1]), secret))
            return int(stream_key(*parts, secret=secret))

        return named

    def _evaluate(self, evaluate: Any) -> Any:
        def noted(model, context, examples):
            known = {id(getattr(context, name)): name for name in ("train", "holdout", "test")}
            self.evaluated.append(known[id(examples)])
            return evaluate(model, context, examples)

        return noted


def both_ends(
    candidates: Sequence[Candidate],
    train: Any,
    _noise: TuningNoise,
    _random: np.random.Generator,
    found: list[tuple[TrainedModel, int]],
) -> tuple[TrainedModel, float]:
    """Train the first and the last candidate instead of random ones, and keep their scores."""
    found += [train(each) for each in (candidates[0], candidates[-1])]
    return found[0][0], 0.0


def test_every_part_of_tuning_has_its_own_secret(paths, monkeypatch):
    used, found = Recorded(monkeypatch), list[Any]()
    monkeypatch.setattr(
        release_training, "select_privately", lambda *given: both_ends(*given, found)
    )
    trained(TUNED, paths)
    assert used.secrets == [b"secret 0", b"secret 1", b"secret 2"]
    assert used.streams == [
        ("selection", b"secret 0"),
        ("noise", b"secret 1"), ("sampling", b"secret 1"),
        ("noise", b"secret 2"), ("sampling", b"secret 2"),
    ]  # fmt: skip
    # A trial is evaluated on the test set and the held-out part, and then scored on the held-out part.
    assert used.evaluated == ["test", "holdout", "holdout"] * 2
    assert used.trained_on == set(range(N)) - set(HELD_OUT)


def test_a_fixed_setting_has_one_secret_and_holds_nothing_out(paths, monkeypatch):
    used = Recorded(monkeypatch)
    trained(FIXED, paths)
    assert used.secrets == [b"secret 0"]
    assert used.streams == [("noise", b"secret 0"), ("sampling", b"secret 0")]
    assert used.evaluated == ["test"]
    assert used.trained_on == set(range(N))


@pytest.mark.parametrize("section", [FIXED, TUNED], ids=["fixed", "tuned"])
def test_secret_trials_log_and_warn_nothing(section, paths, monkeypatch, caplog, recwarn):
    """Times, batch sizes and memory in a log would tell which trials were drawn."""
    caplog.set_level(logging.DEBUG)
    loggers = ["", "dpsweep.training.context", "timm", "a.library"]
    quiet = logging.getLogger("dpsweep.training.context")

    def loud(original):
        def function(*given, **settings):
            for name in loggers:
                logging.getLogger(name).critical("out of memory")
            warnings.warn("a small batch", stacklevel=1)
            return original(*given, **settings)

        return function

    # A trial's setting is secret too, so nothing may be said while it is prepared.
    for name in ("check_size", "train_and_score"):
        monkeypatch.setattr(release_training, name, loud(getattr(release_training, name)))
    trained(section, paths)
    said = [each.getMessage() for each in caplog.records]
    assert "out of memory" not in said
    assert not [each for each in recwarn if "a small batch" in str(each.message)]
    assert all("secret number of trials" in each or "noise" in each for each in said), said
    quiet.warning("heard again")
    assert caplog.records[-1].getMessage() == "heard again"

    def fails(*_):
        raise RuntimeError("no memory")

    monkeypatch.setattr(release_training, "train_and_score", fails)
    with pytest.raises(RuntimeError):
        trained(section, paths)
    quiet.warning("heard after a failure")
    assert caplog.records[-1].getMessage() == "heard after a failure"


def released_model(parameters: dict[str, Any], paths: Paths) -> torch.nn.Module:
    """Return the network of a release, built from its backbone."""
    section = study(FIXED)
    network = build_model(paths.backbone("vit"), section.methods["method"], 10, seed=1)
    with torch.no_grad():
        for name, each in trainable_parameters(network).items():
            each.copy_(torch.as_tensor(parameters[name]))
    return network.eval()


def right_answers(network: torch.nn.Module, inputs: Any, labels: Any) -> Any:
    """Return whether a network is right on each example, shape (examples,)."""
    with torch.no_grad():
        outputs = network(make_preprocess([0.5], [0.5])(torch.from_numpy(inputs.copy())))
    return outputs.argmax(dim=1).numpy() == labels


def test_scores_are_right_answers_on_the_held_out_part(paths, monkeypatch):
    Recorded(monkeypatch)  # gives the same secrets in every run
    found = list[tuple[TrainedModel, int]]()
    monkeypatch.setattr(
        release_training, "select_privately", lambda *given: both_ends(*given, found)
    )
    trained(TUNED, paths)
    data, rows = PreparedDataset.open(paths.dataset("digits")), list(HELD_OUT)
    labels = data.train_labels[rows]
    for model, score in found:
        network = released_model(model.parameters, paths)
        right = right_answers(network, data.train_inputs[rows], labels)
        assert score == right.sum()
        # Other scores differ from this one.
        macro = np.mean([right[labels == each].mean() for each in np.unique(labels)])
        assert round(macro * len(rows)) != score
        assert score not in (0, len(rows))
    assert found[0][1] != found[1][1]


def test_every_trial_has_the_noise_of_its_own_schedule(paths, monkeypatch):
    found = list[tuple[TrainedModel, int]]()

    def one_of_each(candidates, train, *_):
        found.extend(train(each) for each in candidates)
        return found[0][0], 0.0

    monkeypatch.setattr(release_training, "select_privately", one_of_each)
    section = PRIVATE | {"epochs": [1, 2, 5], "clipping_bound": [1.0]}
    assert trained(section, paths)[1] is not None
    size, named = N - len(HELD_OUT), study(section).release
    # Full batches have one step an epoch.
    samplings = [Sampling(size, size, epochs) for epochs in (1, 2, 5)]
    wanted = calibrate_tuning(8.0, 1e-5, named.mean_trials, named.shape, samplings)
    by_steps = {each.steps: each for each in wanted.noise}
    assert len({each.noise_multiplier for each in by_steps.values()}) == 3
    for model, _ in found:
        cell, rate = model.candidate
        assert model.noise == by_steps[cell.epochs]
        spec = model.spec
        assert (spec.noise_multiplier, spec.train_size, spec.batch_size, spec.steps) == (
            model.noise.noise_multiplier, size, size, cell.epochs,
        )  # fmt: skip
        assert (spec.holdout, spec.learning_rate, spec.epochs) == (
            len(HELD_OUT), rate, cell.epochs,
        )  # fmt: skip


def test_written_parameters_are_those_after_the_last_epoch(paths, monkeypatch):
    """The stated test accuracy is that of the written parameters, over examples and not over classes."""
    Recorded(monkeypatch)
    folder = release(FIXED | {"epochs": [4], "learning_rate": [0.1], "epsilon": 50.0}, paths)
    certificate = json.loads((folder / CERTIFICATE).read_text())
    trained, frozen = load_file(folder / TRAINED), load_file(folder / FROZEN)
    network = released_model(dict(trained), paths)
    assert trained.keys() == trainable_parameters(network).keys()
    # Both files together have every parameter once.
    assert frozen.keys() == network.state_dict().keys() - trained.keys()
    data = PreparedDataset.open(paths.dataset("digits"))
    right = right_answers(network, data.test_inputs, data.test_labels)
    assert certificate["test_accuracy"] == pytest.approx(right.mean(), abs=1e-6)
    # The mean over classes differs from it.
    by_class = [right[data.test_labels == each].mean() for each in range(10)]
    assert certificate["test_accuracy"] != pytest.approx(np.mean(by_class), abs=1e-5)


def test_a_certificate_contains_no_local_path_and_no_time(paths):
    metadata = with_weights(paths.backbone("vit")).metadata.model_dump(exclude={"checksum"})
    said = {"kind": "file", "path": "/home/somebody/weights.safetensors", "seconds": 3.5}
    state = load_file(paths.backbone("vit") / "model.safetensors")
    write_backbone(paths.backbone("vit"), state, **metadata | {"pretraining": said})
    folder = release(FIXED, paths)
    certificate = json.loads((folder / CERTIFICATE).read_text())
    assert certificate["network"]["pretraining"] == {"kind": "file"}
    assert not any("somebody" in file.read_text(errors="ignore") for file in folder.iterdir())


def test_the_second_opinion_is_by_privacy_loss_distributions():
    """For a fixed setting it is the noise's own; for tuning, the worst of all trials and their scores."""
    noise = replace(calibrate(8.0, 1e-5, 1000, 1000, 1), pld_epsilon=7.5)
    assert epsilon_by_pld(noise, None) == 7.5
    tuning = calibrate_tuning(8.0, 1e-5, 3, 1, [Sampling(1000, 1000, 1)])
    assert epsilon_by_pld(noise, tuning) == pytest.approx(tuning.total_epsilon, rel=5e-3)
    # With almost no noise on the scores, the scores alone determine epsilon.
    leaky = replace(tuning, score_noise=0.5)
    alone = total_epsilon(gaussian_profile(0.5), 1e-5, 3, 1)
    assert epsilon_by_pld(noise, leaky) == pytest.approx(alone, rel=1e-6)
    assert tuning.total_epsilon < alone < math.inf
