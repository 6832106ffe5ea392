"""Releases: how the model is chosen, when its files appear, and what is refused before training."""

import fcntl
import itertools
import json
import logging
import os
import re
import shutil
import signal
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from pydantic import ValidationError
from safetensors.torch import load_file
from tests.data.test_texts import PIECES, bert
from tests.models.networks import DISTILBERT, make_backbone
from tests.release.releases import FIXED, PRIVATE, Content, release, study
from tests.test_gpus import LISTED, fake_nvidia_smi
from tests.training.test_features import with_weights
from tests.training.tiny_study import N, tiny_sections

from dpsweep.base import files
from dpsweep.base.files import read_checked_json, write_checked_json, write_text
from dpsweep.cli.main import app
from dpsweep.data.prepared import METADATA, PreparedDataset
from dpsweep.models.preprocess import make_preprocess
from dpsweep.privacy import CalibrationError
from dpsweep.privacy.tuning import TuningNoise, trial_count_probabilities
from dpsweep.release import CARD, CERTIFICATE, FROZEN, TRAINED, ReleaseError
from dpsweep.release import train as release_training
from dpsweep.release.ledger import Ledger
from dpsweep.release.train import _tokenizer, select_privately, swept_before, train_release
from dpsweep.release.verify import compare, verify
from dpsweep.study import Study
from dpsweep.study.cells import FeatureSource
from dpsweep.study.paths import Paths
from dpsweep.training import processes
from dpsweep.training.features import compute_features
from dpsweep.training.randomness import PoissonSampler
from dpsweep.training.store import StoredTrial, TrialStore

FILES = {CERTIFICATE, TRAINED, FROZEN, CARD}


def feature_study(release: Content, features: Content) -> Study:
    """Return a study of a head on features of a network with weights from a file."""
    sections = tiny_sections({}, {"kind": "head"})
    weights = {"kind": "file", "path": "model.safetensors"}
    sections["backbones"]["vit"] |= {"weights": weights, "features": features}
    return Study.model_validate(sections | {"release": release})


def everything(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


# -- content ----------------------------------------------------------------------------------------


def assert_loads_as_its_card_says(
    folder: Path, paths: Paths, monkeypatch: pytest.MonkeyPatch, lines: int = 10
) -> dict[str, Any]:
    """Return what the card's code loads; its model must have the accuracy in the certificate."""
    code, _ = re.findall(r"```python\n(.*?)```", (folder / CARD).read_text(), re.DOTALL)
    assert len(code.splitlines()) <= lines
    monkeypatch.chdir(folder)
    loaded: dict[str, Any] = {}
    exec(code, loaded)  # noqa: S102 (our own code)
    data = PreparedDataset.open(paths.dataset("digits"))
    inputs = make_preprocess([0.5], [0.5])(torch.from_numpy(data.test_inputs.copy()))
    with torch.no_grad():
        right = loaded["model"](inputs).argmax(dim=1).numpy() == data.test_labels
    assert right.mean() == pytest.approx(verify(folder).test_accuracy, abs=2e-3)
    return loaded


def test_a_released_model_loads_as_its_card_says(results, monkeypatch):
    folder = results / "first"
    certificate = verify(folder)
    assert certificate.epsilon == 8 and certificate.tuning is None
    assert certificate.split.held_out == 0
    assert_loads_as_its_card_says(folder, Paths(results), monkeypatch)


@pytest.mark.parametrize(
    "features",
    [
        {"pooling": "mean", "transformation": "unit-norm"},
        {"layer": "patch_embed", "pooling": "mean"},
    ],
)
def test_a_head_on_other_features_is_released_with_the_code_that_reads_them(
    features, paths, monkeypatch
):
    with_weights(paths.backbone("vit"))
    longer = {"epsilon": 50.0, "epochs": [15], "batch_size": [64], "learning_rate": [0.1]}
    made = feature_study(FIXED | longer, features)
    data = compute_features(made, paths, FeatureSource("digits", "vit"))
    monkeypatch.setattr("dpsweep.release.train.new_secret", lambda: bytes(32))
    folder = release(made, paths)
    assert load_file(folder / TRAINED).keys() == {"weight", "bias"}
    verify(folder, backbone=paths.backbone("vit"))
    loaded = assert_loads_as_its_card_says(folder, paths, monkeypatch, lines=20)
    # The card's code computes the features that training read.
    given: list[torch.Tensor] = []
    loaded["head"].register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    stored = PreparedDataset.open(paths.dataset("digits"))
    inputs = make_preprocess([0.5], [0.5])(torch.from_numpy(stored.test_inputs[:9].copy()))
    with torch.no_grad():
        loaded["model"](inputs)
    np.testing.assert_allclose(given[0].numpy(), data.test_inputs[:9], atol=1e-5)
    compare(folder, made, paths)
    other = feature_study(FIXED | longer, features | {"transformation": None, "pooling": None})
    with pytest.raises(ReleaseError, match=r"network\.features"):
        compare(folder, other, paths)


def test_accounted_tuning_is_certified(results):
    tuned = results / "tuned"
    certificate = verify(tuned)
    tuning = certificate.tuning
    assert len(tuning.candidates) == 8
    assert certificate.setting in tuning.candidates
    assert 0.99 * 8 < certificate.pld_epsilon <= certificate.certified_epsilon <= 8
    split = certificate.split
    assert certificate.noise.train_size == split.examples - split.held_out < N
    # A single trial spends less than the total.
    assert certificate.noise.certified_epsilon < 7
    # The file contains no secret numbers.
    text = (tuned / CERTIFICATE).read_text()
    keys = set(re.findall(r'"(\w+)":', text))
    assert not keys & {"secret", "seed", "trial_key", "trials", "loss", "mean_gradient_norm"}
    assert np.isfinite(json.loads(text)["tuning"]["score"])


# -- files and locks --------------------------------------------------------------------------------


@pytest.mark.parametrize("section", [FIXED, PRIVATE], ids=["fixed", "private"])
def test_no_file_is_written_before_the_end(section, paths, monkeypatch):
    """A process killed in training leaves its lock and an empty folder; those of earlier ones are gone."""
    before, steps = everything(paths.results), 0
    write_text(paths.results / ".partial-release+x1y2" / "release" / TRAINED, "half")
    lock, batch = paths.results / ".release.lock", PoissonSampler.batch

    def look(sampler, step):
        nonlocal steps
        steps += 1
        (aside,) = paths.results.glob(".partial-*")
        assert everything(paths.results) - before == {lock, aside, aside / ".lock"}
        return batch(sampler, step)

    monkeypatch.setattr(PoissonSampler, "batch", look)
    folder = release(section, paths)
    assert steps
    assert everything(paths.results) - before == {folder} | {folder / name for name in FILES}


def test_an_existing_folder_is_left_alone(paths):
    write_text(paths.release / "mine.txt", "")
    with pytest.raises(ReleaseError, match=r"exists\. A second model"):
        release(FIXED, paths)
    assert [file.name for file in paths.release.iterdir()] == ["mine.txt"]


def test_a_second_call_waits_and_makes_no_second_model(paths, monkeypatch):
    begun, make = threading.Event(), release_training._make
    monkeypatch.setattr(release_training, "_make", lambda *given: begun.set() or make(*given))
    with ThreadPoolExecutor() as pool:
        with paths.release.with_name(".release.lock").open("a") as first:
            fcntl.flock(first, fcntl.LOCK_EX)
            second = pool.submit(release, FIXED, paths)
            assert not begun.wait(1)
            write_text(paths.release / CERTIFICATE, "{}")
        with pytest.raises(ReleaseError, match="exists"):
            second.result()
    assert begun.is_set()


def test_a_terminated_job_stops_between_two_steps(paths, tmp_path, monkeypatch):
    file, steps = tmp_path / "study.yaml", []
    content = tiny_sections({}, {"kind": "film"}) | {"release": FIXED}
    file.write_text(yaml.safe_dump(content | {"results": str(paths.results)}))
    before, batch = everything(paths.results), PoissonSampler.batch

    def told(sampler, step):
        os.kill(os.getpid(), signal.SIGTERM)
        steps.append(step)
        return batch(sampler, step)

    monkeypatch.setattr("dpsweep.training.processes.refuse_network", lambda: None)
    monkeypatch.setattr(PoissonSampler, "batch", told)
    with pytest.raises(SystemExit) as stop:
        app(["release", "--study", str(file)], standalone_mode=False)
    assert (stop.value.code, steps) == (143, [1])
    assert everything(paths.results) == before


# -- the secret number of trials --------------------------------------------------------------------


def test_no_output_reveals_the_number_of_trials(paths, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG, logger="dpsweep")
    found = []
    for count in (1, 6):
        monkeypatch.setattr(release_training, "draw_trial_count", lambda *_, count=count: count)
        folder = release(PRIVATE, paths)
        paths.ledger.unlink()
        content = read_checked_json(folder / CERTIFICATE)
        varies = {"setting", "noise", "test_accuracy", "files"}  # they depend on the winner
        content["tuning"].pop("score")
        same = {key: value for key, value in content.items() if key not in varies}
        found.append(([record.getMessage() for record in caplog.records], same))
        caplog.clear()
        shutil.rmtree(folder)
    assert found[0] == found[1]
    assert found[0][0], "the expected number of trials is logged before training"


# -- sweeps of the same data ------------------------------------------------------------------------


def test_earlier_sweeps_of_the_same_data_are_named(paths, caplog):
    """Trials are found by the checksum of their data or of features of the data, for any grid."""
    cell = paths.cell(study(FIXED).all_cells()[0])
    write_text(cell / "trials-0123456789.parquet", "of former settings")
    data = PreparedDataset.open(paths.dataset("digits")).metadata
    store = TrialStore(paths.trials)
    for key, checksum in (("aa", data.checksum), ("bb", data.checksum), ("cc", "0" * 64)):
        store.save(key, StoredTrial({"spec": {"data": checksum}}, {}))
    store.save_parameters("aa", {"epoch1/w": np.zeros(1)})
    write_text(paths.trials / "dd" / "dd.safetensors", "damaged")
    features = paths.features("digits", "vit")
    features.mkdir(parents=True)
    write_checked_json(features / METADATA, data.model_dump(mode="json") | {"checksum": "1" * 64})
    store.save("ee", StoredTrial({"spec": {"data": "1" * 64}}, {}))
    assert swept_before(study(FIXED), paths) == (["digits"], 3)
    folder = release(FIXED, paths)
    assert "digits: these sweeps have trained on the same data" in caplog.text
    found = verify(folder)
    assert (found.earlier_sweeps, found.earlier_trials) == (["digits"], 3)
    card = (folder / CARD).read_text()
    assert "Sweeps without an account" in card and "(3 trials in its store)" in card


# -- errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"epsilon": 1e-7}, CalibrationError, "no base mechanism gives a total epsilon of 1e-07"),
        ({"epsilon": 0.3}, ReleaseError, "more than the sampling error of an accuracy on so few"),
    ],
)
def test_unreachable_epsilons_are_refused_before_training(
    change, error, message, paths, monkeypatch
):
    monkeypatch.setattr("dpsweep.release.train.train_trial", None)
    before = everything(paths.results)
    with pytest.raises(error, match=message):
        release(PRIVATE | change, paths)
    assert everything(paths.results) == before


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: study(FIXED | {"learning_rate": [0.01, 0.1]}), "selection: found fixed with 2 settings"),
        (lambda: study(FIXED | {"batch_size": [N]}), f"release.batch_size: found {N}; allowed: below {N}"),
        (lambda: study(FIXED, delta=0.01), f"privacy.delta: found 0.01 .*below 1/{N}"),
        (lambda: study(PRIVATE | {"holdout_share": 1e-6}),
         "release.holdout_share: found 1e-06, which holds out 0"),
        (lambda: study(FIXED, training={"engine": "opacus"}),
         "release.sweep: found digits, whose engine is opacus"),
    ],
)  # fmt: skip
def test_invalid_sections_are_refused(make, message):
    with pytest.raises(ValidationError, match=message):
        make()


def killed(paths: Paths, owner: Any, name: str) -> None:
    """Make a release in a fork of this process, which is killed after a call."""
    child = os.fork()
    if child == 0:
        made = getattr(owner, name)

        def last(*given, **named):
            made(*given, **named)
            if owner is not Path or given[0].name == "release":
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(owner, name, last)
                release(FIXED, paths)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.parametrize(
    ("owner", "name", "lines"),
    [
        (release_training, "train_release", 0),
        (release_training, "save_parameters", 0),
        (files, "write_text", 0),
        (files, "write_checked_json", 0),
        (Ledger, "add", 1),
        (Path, "replace", 1),  # of the folder
    ],
)
def test_a_kill_leaves_no_model_without_a_line(owner, name, lines, paths):
    killed(paths, owner, name)
    origins = [["sklearn-digits"]]
    assert paths.release.exists() == (owner is Path)
    assert len(Ledger(paths.ledger).released("", origins)) == lines
    if owner is Path:
        assert verify(paths.release).releases.earlier == []
        return
    release(FIXED, paths)
    assert not list(paths.results.glob(".partial-*"))
    assert len(verify(paths.release).releases.earlier) == lines
    assert len(Ledger(paths.ledger).released("", origins)) == lines + 1


def test_the_line_is_on_the_disk_before_the_model_appears(paths, monkeypatch):
    """A line that only the cache of the disk has is lost by a power cut, and its model may remain."""
    fsync, replace = os.fsync, Path.replace
    events: list[tuple[str, int, int]] = []

    def synced(descriptor):
        fsync(descriptor)
        found = os.fstat(descriptor)
        events.append(("sync", found.st_ino, found.st_size))

    def moved_to(self, target):
        replace(self, target)
        if target == paths.release:
            events.append(("model", 0, 0))

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", moved_to)
    folder = release(FIXED, paths)
    before = events[: events.index(("model", 0, 0))]
    ledger = paths.ledger.stat()
    assert ("sync", ledger.st_ino, ledger.st_size) in before
    assert ("sync", paths.ledger.parent.stat().st_ino) in [each[:2] for each in before], (
        "a new ledger has a name only after its folder is synced"
    )
    written = [(each.stat().st_ino, each.stat().st_size) for each in folder.iterdir()]
    assert {("sync", *each) for each in written} <= set(before)


def selection_noise(score_noise: float) -> TuningNoise:
    return TuningNoise(1, 1e-5, 3, 1, 0.3, 0.8, 0.1, 0.05, score_noise, [])


def test_the_highest_score_wins(monkeypatch):
    monkeypatch.setattr(release_training, "draw_trial_count", lambda *_: 40)
    rights = {"a": 10, "b": 30, "c": 20}
    models = itertools.count()

    def train(name):
        next(models)
        return name, rights[name]

    random = np.random.default_rng(0)
    name, score = select_privately(list(rights), train, selection_noise(1e-3), random)
    assert name == "b"
    assert score == pytest.approx(30, abs=0.01)
    assert next(models) == 40


def test_scores_are_noisy(monkeypatch):
    monkeypatch.setattr(release_training, "draw_trial_count", lambda *_: 1)
    random = np.random.default_rng(0)
    scores = [
        select_privately(["a"], lambda _: (None, 100), selection_noise(7), random)[1]
        for _ in range(2000)
    ]
    assert np.mean(scores) == pytest.approx(100, abs=0.8)
    assert np.std(scores) == pytest.approx(7, rel=0.08)


def test_candidates_and_their_number_are_random():
    random = np.random.default_rng(0)
    counts, drawn = Counter[int](), Counter[str]()
    for _ in range(3000):
        before = drawn.total()
        select_privately(
            ["a", "b"], lambda name: (drawn.update(name), 0), selection_noise(1), random
        )
        counts[drawn.total() - before] += 1
    expected = 3000 * trial_count_probabilities(3, 1, 4)
    found = np.array([counts[k] for k in range(1, 5)])
    assert (np.abs(found - expected) < 5 * np.sqrt(expected)).all()
    assert drawn["a"] == pytest.approx(drawn["b"], rel=0.06)


def test_another_tokenizer_than_that_of_the_network_is_refused(tmp_path):
    """Two vocabularies of one size give a network other texts to read, without any error."""
    plan: Any = SimpleNamespace(sweep=SimpleNamespace(backbone="reader"))
    paths, own = Paths(tmp_path / "results"), bert(tmp_path)
    facts = {"library": "transformers", "kind": "text", "mean": (), "std": ()}
    folder = paths.backbone("reader")
    make_backbone(folder, "distilbert", DISTILBERT, tokenizer=own.identity, **facts)
    file = paths.tokenizer("reader")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes((tmp_path / "out.json").read_bytes())
    assert _tokenizer(plan, paths).identity == own.identity
    other = bert(tmp_path, [*PIECES[:-2], *PIECES[:-3:-1]])
    assert other.identity.vocabulary == own.identity.vocabulary
    file.write_bytes((tmp_path / "out.json").read_bytes())
    with pytest.raises(ReleaseError, match="is not the tokenizer of"):
        _tokenizer(plan, paths)


# -- several processes ------------------------------------------------------------------------------


def train_with_known_secrets(study: Study, paths: Paths) -> Any:
    """Train with secrets that each process would draw differently; note which processes trained."""
    rank = processes.rank()
    (paths.results / f"process {rank} of {processes.count()}").touch()
    secrets = (f"{rank} {number}".encode() for number in range(1000))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(release_training, "new_secret", lambda: next(secrets))
        return train_release(study, paths)


def released(folder: Path, prepared: Path, gpus: int) -> None:
    """Make the release of a study by its command."""
    folder.mkdir(parents=True)
    for part in ("data", "backbones"):
        (folder / part).symlink_to(prepared / part)
    section = PRIVATE | {"gpus": gpus, "learning_rate": [0.01], "mean_trials": 2.0}
    content = tiny_sections({}, {"kind": "film"}) | {"release": section, "results": str(folder)}
    (folder / "study.yaml").write_text(yaml.safe_dump(content))
    app(["release", "--study", str(folder / "study.yaml")], standalone_mode=False)


@pytest.mark.slow
def test_two_gpus_release_the_model_of_one(prepared, tmp_path, monkeypatch):
    """Up to the order of sums."""
    fake_nvidia_smi(tmp_path / "bin", LISTED)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setattr("dpsweep.training.processes.refuse_network", lambda: None)
    monkeypatch.setattr(release_training, "train_release", train_with_known_secrets)
    for gpus in (1, 2):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)  # a job shows itself its GPUs
        released(tmp_path / str(gpus) / "results", prepared, gpus)
    one, two = (tmp_path / str(gpus) / "results/release" for gpus in (1, 2))
    assert {each.name for each in two.parent.glob("process*")} == {
        "process 0 of 2", "process 1 of 2"
    }  # fmt: skip
    assert verify(two, ledger="none").certified_epsilon <= PRIVATE["epsilon"]
    expected, found = (read_checked_json(each / CERTIFICATE) for each in (one, two))
    for each in (expected, found):
        del each["files"][TRAINED]  # parameters differ by rounding
    assert found == expected
    wanted = load_file(one / TRAINED)
    for name, value in load_file(two / TRAINED).items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-4, atol=1e-5)
