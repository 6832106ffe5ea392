"""A release: what is on disk and when, what it says, and that edits are found."""

import fcntl
import json
import logging
import os
import re
import shutil
import signal
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from pydantic import ValidationError
from safetensors.torch import load_file
from tests.release.test_loading_code import TEXT
from tests.training.pretended_gpu import CUDA, PretendedGpu
from tests.training.test_features import with_weights
from tests.training.tiny_study import N, tiny_sections
from tests.training.tiny_study import prepare as prepare_study
from timm.models.vision_transformer import VisionTransformer

import dpsweep
from dpsweep.base.files import read_checked_json, write_checked_json, write_text
from dpsweep.cli.main import app
from dpsweep.data.prepared import METADATA, PreparedDataset
from dpsweep.models.architecture import BackboneError
from dpsweep.models.architectures import create
from dpsweep.models.build import linear_head
from dpsweep.models.preprocess import make_preprocess
from dpsweep.privacy import CalibrationError
from dpsweep.release import CARD, CERTIFICATE, FROZEN, TRAINED, ReleaseError, write
from dpsweep.release import train as release_training
from dpsweep.release.section import compare
from dpsweep.release.verify import not_known, verify
from dpsweep.release.write import Swept, swept_before, write_release
from dpsweep.study import Study
from dpsweep.study.cells import FeatureSource
from dpsweep.study.config import Release
from dpsweep.study.paths import Paths
from dpsweep.training.context import TrialContext
from dpsweep.training.features import compute_features
from dpsweep.training.randomness import Indices, PoissonSampler
from dpsweep.training.store import StoredTrial, TrialStore

FIXED: dict[str, Any] = {
    **{"sweep": "digits", "epsilon": 8.0, "epochs": [2], "batch_size": ["full"]},
    **{"clipping_bound": [1.0], "learning_rate": [0.01]},
}
PRIVATE = FIXED | {
    "selection": "private",
    "epochs": [1, 2],
    "clipping_bound": [0.1, 1.0],
    "learning_rate": [0.003, 0.01],
    "holdout_share": 0.2,
}
FILES = {CERTIFICATE, TRAINED, FROZEN, CARD}


def study(release: dict[str, Any], delta: float = 1e-5) -> Study:
    sections = tiny_sections({}, {"kind": "film"})
    return Study.model_validate(sections | {"release": release, "privacy": {"delta": delta}})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    prepare_study(study(FIXED), folder)
    return folder


@pytest.fixture
def paths(prepared: Path, tmp_path: Path) -> Paths:
    return Paths(Path(shutil.copytree(prepared, tmp_path / "results")))


def section_of(made: Study) -> Release:
    return made.release


def release(section: dict[str, Any] | Study, paths: Paths) -> Path:
    made = section if isinstance(section, Study) else study(section)
    return write_release(made, paths, section_of(made))


@pytest.fixture(scope="module")
def tuned(prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copied = shutil.copytree(prepared, tmp_path_factory.mktemp("tuned") / "results")
    return release(PRIVATE, Paths(Path(copied)))


def test_a_second_call_waits_and_makes_no_second_model(paths: Paths) -> None:
    with ThreadPoolExecutor() as pool:
        with paths.release.with_name(".release.lock").open("a") as first:
            fcntl.flock(first, fcntl.LOCK_EX)
            second = pool.submit(release, FIXED, paths)
            with pytest.raises(TimeoutError):  # a release takes less where nothing holds it up
                second.result(timeout=5)
            write_text(paths.release / CERTIFICATE, "{}")
        with pytest.raises(ReleaseError, match="exists"):
            second.result()


def feature_study(release: dict[str, Any], features: dict[str, Any]) -> Study:
    """A head on features of the network, whose weights come from a file."""
    sections = tiny_sections({}, {"kind": "head"})
    sections["backbones"]["vit"] |= {
        **{"weights": {"kind": "file", "path": "model.safetensors"}, "features": features}
    }
    return Study.model_validate(sections | {"release": release})


def accuracy_as_loaded(code: str, paths: Paths) -> float:
    """Accuracy on the test set of the model that the code of a card loads."""
    loaded: dict[str, Any] = {}
    exec(code, loaded)  # noqa: S102 (it is ours)
    data = PreparedDataset.open(paths.dataset("digits"))
    inputs = make_preprocess([0.5], [0.5])(torch.from_numpy(data.test_inputs.copy()))
    with torch.no_grad():
        right = loaded["model"](inputs).argmax(dim=1).numpy() == data.test_labels
    return float(right.mean())


def everything(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def test_a_released_model_loads_as_its_card_says(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = release(FIXED, paths)
    assert {file.name for file in folder.iterdir()} == FILES
    certificate = verify(folder)
    assert certificate.epsilon == 8 and certificate.tuning is None
    assert certificate.split.held_out == 0
    code, _ = re.findall(r"```python\n(.*?)```", (folder / CARD).read_text(), re.DOTALL)
    assert len(code.splitlines()) <= 10
    monkeypatch.chdir(folder)
    assert accuracy_as_loaded(code, paths) == pytest.approx(certificate.test_accuracy, abs=2e-3)


def test_a_head_on_features_is_released_as_the_whole_network(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_weights(paths.backbone("vit"))
    longer = {"epsilon": 50.0, "epochs": [15], "batch_size": [64], "learning_rate": [0.1]}
    made = feature_study(FIXED | longer, {})
    compute_features(made, paths, FeatureSource("digits", "vit"))
    # No step runs the network.
    monkeypatch.setattr(VisionTransformer, "forward", None)
    # The same accuracy each time.
    monkeypatch.setattr("dpsweep.release.train.new_secret", lambda: bytes(32))
    folder = release(made, paths)
    monkeypatch.undo()
    certificate = verify(folder)
    assert certificate.network.trained_parameters == 10 * 33
    assert load_file(folder / TRAINED).keys() == {"head.weight", "head.bias"}
    code, _ = re.findall(r"```python\n(.*?)```", (folder / CARD).read_text(), re.DOTALL)
    monkeypatch.chdir(folder)
    assert accuracy_as_loaded(code, paths) == pytest.approx(certificate.test_accuracy, abs=2e-3)
    assert certificate.test_accuracy > 0.12  # by chance 0.1; 0.35 on average


def test_other_features_than_the_head_would_read_are_refused() -> None:
    with pytest.raises(
        ValidationError, match=r"release.sweep: found digits, whose head reads other"
    ):
        feature_study(FIXED, {"transformation": "unit-norm"})


def test_a_head_of_several_layers_is_refused() -> None:
    with pytest.raises(
        BackboneError, match=r"pre_classifier, network.classifier, which is not one"
    ):
        linear_head(create(TEXT, classes=3))


def test_no_model_is_made_twice_alike(paths: Paths) -> None:
    folder = release(FIXED, paths)
    first = load_file(folder / TRAINED)
    folder.rename(folder.with_name("earlier"))
    second = load_file(release(FIXED, paths) / TRAINED)
    assert first.keys() == second.keys()
    assert not any(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("section", [FIXED, PRIVATE], ids=["fixed", "private"])
def test_nothing_is_on_disk_before_the_end(
    section: dict[str, Any], paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a process that is killed leaves nothing but its lock, at whichever step."""
    before, steps = everything(paths.results), 0
    lock = paths.results / ".release.lock"
    batch = PoissonSampler.batch

    def look(sampler: PoissonSampler, step: int) -> Indices:
        nonlocal steps
        steps += 1
        assert everything(paths.results) - before == {lock}
        return batch(sampler, step)

    monkeypatch.setattr(PoissonSampler, "batch", look)
    folder = release(section, paths)
    assert steps
    assert everything(paths.results) - before == {folder} | {folder / name for name in FILES}


def test_a_failure_leaves_nothing(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    before = everything(paths.results)

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("dpsweep.release.write.write_text", fail)
    with pytest.raises(OSError, match="disk full"):
        release(FIXED, paths)
    assert everything(paths.results) == before


def test_what_a_killed_call_has_begun_to_write_is_removed(paths: Paths) -> None:
    before = everything(paths.results)
    begun = paths.results / ".partial-release-x1y2" / "release"
    begun.mkdir(parents=True)
    (begun / TRAINED).write_bytes(b"half")
    folder = release(FIXED, paths)
    assert everything(paths.results) - before == {folder} | {folder / name for name in FILES}


def test_of_two_calls_at_once_one_makes_the_release(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are no locks, the slower one is told, and leaves the model of the faster one alone."""
    train = write.train_release

    def refuse(*_: Any) -> None:
        raise OSError("No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)

    def train_while_another_does(*given: Any) -> Any:
        monkeypatch.setattr(write, "train_release", train)
        release(FIXED, paths)
        return train(*given)

    monkeypatch.setattr(write, "train_release", train_while_another_does)
    with pytest.raises(ReleaseError, match=r"exists\. A second model"):
        release(FIXED, paths)
    verify(paths.release)
    assert not list(paths.results.glob(".partial-*"))


def test_a_job_that_is_told_to_end_does_so_between_two_steps(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, steps = tmp_path / "study.yaml", []
    content = tiny_sections({}, {"kind": "film"}) | {"release": FIXED}
    file.write_text(yaml.safe_dump(content | {"results": str(paths.results)}))
    before, batch = everything(paths.results), PoissonSampler.batch

    def told(sampler: PoissonSampler, step: int) -> Indices:
        os.kill(os.getpid(), signal.SIGTERM)
        steps.append(step)
        return batch(sampler, step)

    monkeypatch.setattr("dpsweep.training.job.refuse_network", lambda: None)
    monkeypatch.setattr(PoissonSampler, "batch", told)
    with pytest.raises(SystemExit) as stop:
        app(["release", "--study", str(file)], standalone_mode=False)
    assert (stop.value.code, steps) == (143, [1])
    assert everything(paths.results) == before


def test_nothing_tells_the_number_of_trials(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="dpsweep")
    found = []
    for count in (1, 6):
        monkeypatch.setattr(release_training, "draw_trial_count", lambda *_, count=count: count)
        folder = release(PRIVATE, paths)
        paths.ledger.unlink()
        content = read_checked_json(folder / CERTIFICATE)
        varies = {"setting", "noise", "test_accuracy", "files"}  # of the winner, whoever it is
        content["tuning"].pop("score")
        same = {key: value for key, value in content.items() if key not in varies}
        found.append(([record.getMessage() for record in caplog.records], same))
        caplog.clear()
        shutil.rmtree(folder)
    assert found[0] == found[1]
    assert found[0][0], "the expected number of trials is said before"


@pytest.mark.slow
def test_no_line_of_a_gpu_tells_the_number_of_trials(
    prepared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A GPU tries each batch size when it is first drawn, and memory may run out at any step."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr("dpsweep.training.context.default_device", lambda: CUDA)
    monkeypatch.setattr(PoissonSampler, "batch", out_of_memory_now_and_then(PoissonSampler.batch))
    sections = tiny_sections({"physical_batch": "auto", "precision": "float32"}, {"kind": "film"})
    section = PRIVATE | {"epochs": [1], "batch_size": [40, 160]}
    made = Study.model_validate(sections | {"release": section})
    found, sizes = [], set()
    physical_batch = TrialContext.physical_batch

    def watched(context: TrialContext, setting: Any, engine: Any, batch_size: int) -> Any:
        sizes.add(batch_size)
        return physical_batch(context, setting, engine, batch_size)

    monkeypatch.setattr(TrialContext, "physical_batch", watched)
    # Both batch sizes are among the first three settings that this draws.
    monkeypatch.setattr(
        "dpsweep.release.train.numpy_stream", lambda *_, **__: np.random.default_rng(0)
    )
    for count in (1, 3):
        monkeypatch.setattr(release_training, "draw_trial_count", lambda *_, count=count: count)
        paths = Paths(Path(shutil.copytree(prepared, tmp_path / str(count) / "results")))
        caplog.clear()
        with PretendedGpu().pretended():
            release(made, paths)
        assert verify(paths.release).device == "cuda"
        # A search for noise may be slow, and says so, before anything is drawn.
        found.append(
            [
                record.getMessage()
                for record in caplog.records
                if record.name != "dpsweep.privacy.calibration"
            ]
        )
        assert len(sizes) == min(count, 2)
    assert found[0] == found[1]
    assert "a secret number of trials" in found[0][0]


def out_of_memory_now_and_then(batch: Callable[..., Indices]) -> Callable[..., Indices]:
    logger = logging.getLogger("dpsweep.training.physical")

    def drawn(sampler: PoissonSampler, step: int) -> Indices:
        logger.warning("out of memory: from now on 7 examples at once")
        warnings.warn("out of memory", stacklevel=1)
        return batch(sampler, step)

    return drawn


def test_accounted_tuning_is_certified(tuned: Path) -> None:
    certificate = verify(tuned)
    tuning = certificate.tuning
    assert tuning is not None and len(tuning.candidates) == 8
    assert certificate.setting in tuning.candidates
    assert 0.99 * 8 < certificate.pld_epsilon <= certificate.certified_epsilon <= 8
    split = certificate.split
    assert certificate.noise.train_size == split.examples - split.held_out < N
    # A trial alone may spend less than the whole.
    assert certificate.noise.certified_epsilon < 7


def test_a_notebook_names_folder_and_ledger_by_strings(tuned: Path) -> None:
    assert verify(str(tuned), ledger="none") == verify(tuned, ledger="none")
    with pytest.raises(ReleaseError, match=r"no/such.jsonl: no such ledger"):
        verify(str(tuned), ledger="no/such.jsonl")


@pytest.mark.parametrize("name", [TRAINED, FROZEN, CARD])
def test_edited_and_missing_files_are_found(name: str, tuned: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tuned, tmp_path / "copy"))
    content = bytearray((folder / name).read_bytes())
    content[-1] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(ReleaseError, match=name):
        verify(folder)
    (folder / name).unlink()
    with pytest.raises(ReleaseError, match=f"{name}: missing"):
        verify(folder)


def test_a_damaged_certificate_is_no_certificate(tuned: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(tuned, tmp_path / "copy"))
    file = folder / CERTIFICATE
    whole = file.read_text()
    file.write_text(whole.replace('"delta": 1e-05', '"delta": 1e-06'))
    with pytest.raises(ReleaseError, match="damaged or edited"):
        verify(folder)
    content = json.loads(whole)
    del content["fingerprint"], content["split"]
    write_checked_json(file, content)
    with pytest.raises(ReleaseError, match="split: Field required"):
        verify(folder)
    file.unlink()
    with pytest.raises(ReleaseError, match="no release"):
        verify(folder)


def test_what_was_swept_before_is_named(paths: Paths, caplog: pytest.LogCaptureFixture) -> None:
    trials = (
        paths.cell(study(FIXED).all_cells()[0]) / "trials-0123456789.parquet"
    )  # of former settings
    trials.parent.mkdir(parents=True)
    trials.touch()
    folder = release(FIXED, paths)
    assert "digits: these sweeps have trained on the same data" in caplog.text
    assert verify(folder).earlier_sweeps == ["digits"]
    assert "Sweeps without an account" in (folder / CARD).read_text()


def test_trials_of_other_grids_are_found(paths: Paths) -> None:
    """By the checksum of their data, also where only features of it were read."""
    data = PreparedDataset.open(paths.dataset("digits")).metadata
    store = TrialStore(paths.trials)
    for key, checksum in (("aa", data.checksum), ("bb", data.checksum), ("cc", "0" * 64)):
        store.save(key, StoredTrial({"spec": {"data": checksum}}, {}))
    store.save_parameters("aa", {"epoch1/w": np.zeros(1)})
    (paths.trials / "dd").mkdir()
    (paths.trials / "dd" / "dd.safetensors").write_bytes(b"damaged")
    features = paths.features("digits", "vit")
    features.mkdir(parents=True)
    write_checked_json(features / METADATA, data.model_dump(mode="json") | {"checksum": "1" * 64})
    store.save("ee", StoredTrial({"spec": {"data": "1" * 64}}, {}))
    made = study(FIXED)
    assert swept_before(made, paths, section_of(made)) == Swept([], 3)
    folder = release(FIXED, paths)
    assert verify(folder).earlier_trials == 3
    assert "(3 trials in its store)" in (folder / CARD).read_text()


def test_sweeps_of_a_folder_within_the_folder_are_named(paths: Paths) -> None:
    sections = tiny_sections({}, {"kind": "film"})
    pets = sections["datasets"]["digits"] | {
        "source": {"kind": "folder", "path": "data/pets"},
        "image_size": 8,
    }
    cats = pets | {"source": {"kind": "folder", "path": "data/pets/../pets/cats"}}
    others = pets | {"source": {"kind": "folder", "path": "data/pets-of-others"}}
    sections["datasets"] = {"pets": pets, "cats": cats, "others": others}
    sweep = sections["sweeps"]["digits"]
    sections["sweeps"] = {name: sweep | {"dataset": name} for name in sections["datasets"]}
    sections["backbones"]["vit"] |= {"mean": [0.5] * 3, "std": [0.5] * 3}
    sections["backbones"]["vit"]["arguments"] |= {"in_chans": 3}
    made = Study.model_validate(sections | {"release": FIXED | {"sweep": "cats"}})
    for cell in made.all_cells():
        (paths.cell(cell)).mkdir(parents=True)
        (paths.cell_trials(made, cell)).touch()
    assert swept_before(made, paths, section_of(made)).sweeps == ["pets", "cats"]


def test_engine_opacus_releases_nothing() -> None:
    sections = tiny_sections({"engine": "opacus"}, {"kind": "film"})
    with pytest.raises(
        ValidationError, match=r"release.sweep: found digits, whose engine is opacus"
    ):
        Study.model_validate(sections | {"release": FIXED})


def test_a_section_of_other_numbers_is_found(tuned: Path, paths: Paths) -> None:
    def differences(made: Study) -> str:
        with pytest.raises(ReleaseError) as found:
            compare(tuned, made, section_of(made))
        return str(found.value)

    made = study(PRIVATE)
    compare(tuned, made, section_of(made))
    names = {
        name: backbone.model_copy(update={"architecture": "hf-hub:timm/vit"})
        for name, backbone in made.backbones.items()
    }
    compare(tuned, made.model_copy(update={"backbones": names}), section_of(made))
    changed = differences(study(PRIVATE | {"epsilon": 1.0, "learning_rate": [0.003, 0.02]}))
    assert "epsilon: the certificate has 8.0, the section 1.0" in changed
    assert "candidates.1.learning_rate: the certificate has 0.01, the section 0.02" in changed
    fixed = differences(study(FIXED, delta=1e-6))
    assert "tuning: the certificate has one, the section none" in fixed
    assert "delta: the certificate has 1e-05, the section 1e-06" in fixed


def test_verification_prints_what_it_cannot_know(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "study.yaml"
    content = tiny_sections({}, {"kind": "film"}) | {"release": PRIVATE}
    file.write_text(yaml.safe_dump(content | {"results": str(tmp_path / "results")}))
    app(["verify", str(tuned), "--study", str(file)], standalone_mode=False)
    said = capsys.readouterr().out
    for name in not_known(dpsweep.verify(tuned)):
        assert f"  {name}: " in said
    assert "released before on these data, as far as the ledger goes: 0" in said
    file.write_text(
        yaml.safe_dump(content | {"release": PRIVATE | {"epsilon": 1.0}, "results": str(tmp_path)})
    )
    with pytest.raises(ReleaseError, match=r"epsilon: the certificate has 8.0, the section 1.0"):
        app(["verify", str(tuned), "--study", str(file)], standalone_mode=False)


def test_an_existing_folder_is_left_alone(paths: Paths) -> None:
    paths.release.mkdir()
    (paths.release / "mine.txt").touch()
    with pytest.raises(ReleaseError, match=r"exists\. A second model"):
        release(FIXED, paths)
    assert [file.name for file in paths.release.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"epsilon": 1e-7}, CalibrationError, "no base mechanism gives a total epsilon of 1e-07"),
        ({"epsilon": 0.3}, ReleaseError, "more than the sampling error of an accuracy on so few"),
    ],
)
def test_what_cannot_be_had_trains_nothing(
    change: dict[str, Any],
    error: type[Exception],
    message: str,
    paths: Paths,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dpsweep.release.train.train_trial", None)
    before = everything(paths.results)
    with pytest.raises(error, match=message):
        release(PRIVATE | change, paths)
    assert everything(paths.results) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": [0.01, 0.1]}, "selection: found fixed with 2 settings"),
        ({"selection": "private"}, "found private with a grid of one setting"),
        ({"sweep": "digit"}, "release.sweep: found .*did you mean digits"),
        ({"batch_size": [N]}, f"release.batch_size: found {N}; allowed: below {N}"),
    ],
)
def test_sections_that_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        study(FIXED | change)


def test_refused_delta_and_share() -> None:
    with pytest.raises(ValidationError, match=f"privacy.delta: found 0.01 .*below 1/{N}"):
        study(FIXED, delta=0.01)
    with pytest.raises(
        ValidationError, match=r"release.holdout_share: found 1e-06, which holds out 0"
    ):
        study(PRIVATE | {"holdout_share": 1e-6})


def test_secret_numbers_are_not_in_the_certificate(tuned: Path) -> None:
    text = (tuned / CERTIFICATE).read_text()
    keys = set(re.findall(r'"(\w+)":', text))
    assert not keys & {"secret", "seed", "trial_key", "trials", "loss", "mean_gradient_norm"}
    assert np.isfinite(json.loads(text)["tuning"]["score"])
