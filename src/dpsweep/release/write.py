"""Writing of a release: train the model, and create its folder completely or not at all."""

import logging
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpsweep.base.files import checksum, fingerprint, sync_folder, write_checked_json, write_text
from dpsweep.data.prepared import DatasetError, PreparedDataset, Resize, read_metadata
from dpsweep.data.tokenizer import Tokenizer
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.models.build import build_head, build_model
from dpsweep.privacy.tuning import TuningNoise
from dpsweep.release import CARD, CERTIFICATE, TOKENIZER, ReleaseError, binary_files
from dpsweep.release.card import model_card
from dpsweep.release.certificate import (
    Certificate,
    Network,
    ReleasedFeatures,
    ReleasedModel,
    TestSet,
    best_attacks,
    certify_tuning,
    epsilon_by_pld,
)
from dpsweep.release.composition import refuse_beyond_budget, released_together
from dpsweep.release.files import save_parameters, stated, stated_tap
from dpsweep.release.ledger import Ledger, locked, open_ledger
from dpsweep.release.section import ReleasePlan, own_features
from dpsweep.release.train import TrainedModel, fixed_noise, train_release
from dpsweep.study import Study
from dpsweep.study.datasets import origins, shares_examples
from dpsweep.study.paths import Paths
from dpsweep.study.release import Release
from dpsweep.training.features import FeatureRun
from dpsweep.training.launch import launch
from dpsweep.training.store import TrialStore

log = logging.getLogger(__name__)

_UNFINISHED = ".partial-release-"


def check_budget(study: Study, paths: Paths) -> None:
    """Refuse a release beyond the budget before its data are prepared.

    Earlier releases are found by where their data come from; `write` also compares checksums.

    Raises:
        ReleaseError: the releases would exceed the budget, or the ledger is damaged.
        CalibrationError: no noise gives the total epsilon.
    """
    release = study.release
    if release is None or study.budget is None or paths.release.exists():
        return
    source = study.datasets[study.sweeps[release.sweep].dataset].source
    earlier = Ledger(paths.ledger).released("", origins(source))
    refuse_beyond_budget(study, earlier, _planned(study, release))


def _planned(study: Study, release: Release) -> ReleasedModel:
    """Return the new model's entry of the ledger, but for the fingerprint of its certificate."""
    split = ReleasePlan(study, release).split
    return ReleasedModel(
        certificate="0" * 64,
        epsilon=release.epsilon,
        delta=study.privacy.delta,
        noise=fixed_noise(study, release),
        unit=split.unit,
        rows_per_unit=split.rows_per_unit,
    )


@dataclass(frozen=True)
class EarlierSweeps:
    """Training on a release's data without an account; epsilon does not cover choices made by it."""

    sweeps: list[str]
    """Sweeps of the study with a finished cell."""
    trials: int
    """Finished trials in the store."""


def swept_before(study: Study, paths: Paths, release: Release) -> EarlierSweeps:
    """Find sweeps and trials on data that may share examples with the data of a release.

    Trials are found by the checksum of their data, so trials of former grids count too.
    """
    source = study.datasets[study.sweeps[release.sweep].dataset].source
    shared = {name for name, each in study.datasets.items() if shares_examples(each.source, source)}
    sweeps = [
        name
        for name, sweep in study.sweeps.items()
        if sweep.dataset in shared
        # Former settings count too, because they trained on the same data.
        and any(any(paths.cell(cell).glob("trials*")) for cell in study.sweep_cells(name))
    ]
    read = {each for name in shared for each in _checksums(paths, name)}
    trials = sum(record["spec"]["data"] in read for record in TrialStore(paths.trials).records())
    return EarlierSweeps(sweeps, trials)


def _checksums(paths: Paths, dataset: str) -> Iterator[str]:
    """Yield the checksums of a dataset and its features, if they are prepared."""
    for folder in (paths.dataset(dataset), *paths.features(dataset, "").glob("*")):
        with suppress(DatasetError):
            yield read_metadata(folder).checksum


def write_release(study: Study, paths: Paths, release: Release) -> Path:
    """Train the model of a study's release and write its folder.

    A call waits while another one writes this folder, on any machine that shares the disk. Two calls at
    once would not be private: the call with fewer trials would end first and win.

    Returns:
        The folder.

    Raises:
        CalibrationError: no noise gives the total epsilon.
        CellError: the prepared data has another size than in the study.
        ReleaseError: the folder exists, the held-out part is too small, or the ledger is damaged.
    """
    folder = paths.release
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        _make(study, paths, release)
    return folder


def _make(study: Study, paths: Paths, release: Release) -> None:
    folder = paths.release
    _refuse_another(folder)
    for left in folder.parent.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(left)  # from a call that was killed while writing
    swept = swept_before(study, paths, release)
    if swept.sweeps or swept.trials:
        log.warning(
            "%s: these sweeps have trained on the same data (%d trials in the store). Epsilon does not cover "
            "choices made by looking at them. The certificate names them",
            ", ".join(swept.sweeps) or "sweeps that are not in the study",
            swept.trials,
        )
    dataset = study.sweeps[release.sweep].dataset
    data = read_metadata(paths.dataset(dataset)).checksum, origins(study.datasets[dataset].source)
    # Before training, check that the ledger can be read and written and that the models can be composed.
    with open_ledger(paths.ledger) as ledger:
        earlier = ledger.released(*data)
    new = _planned(study, release)
    together = released_together(earlier, new)
    refuse_beyond_budget(study, earlier, new)
    tokenizer = _tokenizer(study, paths, release)
    gpus = study.release_gpus(release)
    model, tuning, score = launch(gpus, train_release, study, paths, release)
    with (
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=_UNFINISHED) as unfinished,
        open_ledger(paths.ledger) as ledger,
    ):
        made = Path(unfinished) / "release"
        made.mkdir()
        network = _write_network(study, paths, release, model, tokenizer, made)
        others = ledger.released(*data)
        if others != earlier:  # another release was made during training
            together = released_together(others, new)
            refuse_beyond_budget(study, others, new)
        certificate = Certificate.model_validate(
            ReleasePlan(study, release).decided()
            | _trained(study, release, model, tuning, score)
            | {
                "title": study.title,
                "test_set": _test_set(paths.dataset(dataset), model.record.get("unit_accuracy")),
                "earlier_sweeps": swept.sweeps,
                "earlier_trials": swept.trials,
                "releases": together,
                "network": network,
                "files": {name: checksum(made / name) for name in binary_files(network.kind)},
            }
        )
        content = certificate.model_dump(mode="json")
        write_text(made / CARD, model_card(certificate))
        write_checked_json(made / CERTIFICATE, content)
        _refuse_another(folder)
        # Add the line first, so that no model exists without a line.
        ledger.add(*data, certificate.in_ledger(fingerprint(content)))
        made.replace(folder)
        sync_folder(folder.parent)


def _test_set(dataset: Path, unit_accuracy: float | None) -> TestSet:
    data = PreparedDataset.open(dataset)
    counts = np.bincount(data.test_labels)
    return TestSet(
        size=int(counts.sum()),
        largest_class=int(counts.max()),
        units=data.metadata.test_units,
        unit_accuracy=unit_accuracy,
    )


def _trained(
    study: Study, release: Release, model: TrainedModel, tuning: TuningNoise | None, score: float
) -> dict[str, Any]:
    """Return the fields of a certificate that depend on training."""
    plan, spec = ReleasePlan(study, release), model.spec
    candidates = list(map(plan.setting, plan.candidates))
    return {
        "certified_epsilon": tuning.total_epsilon if tuning else model.noise.certified_epsilon,
        "pld_epsilon": epsilon_by_pld(model.noise, tuning),
        "attacks": best_attacks(model.noise, tuning),
        "setting": plan.setting(model.candidate),
        "precision": spec.precision,
        "engine": spec.engine,
        "device": spec.device,
        "noise": model.noise,
        "tuning": certify_tuning(tuning, candidates, score) if tuning else None,
        "test_accuracy": model.record["accuracy"],
        "versions": model.record["versions"],
    }


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock beside a folder; wait for other calls first."""
    path = folder.with_name(f".{folder.name}.lock")
    with locked(path, "another call makes the same release"):
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _refuse_another(folder: Path) -> None:
    """Raise a `ReleaseError` if the folder exists and is not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ReleaseError(
            f"{folder}: exists. A second model of the same data spends epsilon a second time, and no "
            "model can be made again; move the folder away if you mean it"
        )


def _tokenizer(study: Study, paths: Paths, release: Release) -> Tokenizer | None:
    """Open the tokenizer of a network; return None if the network reads no text."""
    backbone = study.sweeps[release.sweep].backbone
    expected = PreparedBackbone.open(paths.backbone(backbone)).metadata.tokenizer
    if expected is None:
        return None
    tokenizer = Tokenizer.open(paths.tokenizer(backbone))
    if tokenizer.identity != expected:
        raise ReleaseError(
            f"{paths.tokenizer(backbone)}: is not the tokenizer of {paths.backbone(backbone)}; "
            "prepare both again"
        )
    return tokenizer


def _write_network(
    study: Study,
    paths: Paths,
    release: Release,
    model: TrainedModel,
    tokenizer: Tokenizer | None,
    folder: Path,
) -> Network:
    """Write both files of parameters and the tokenizer, and return the network of the certificate."""
    sweep = study.sweeps[release.sweep]
    data = read_metadata(paths.dataset(sweep.dataset))
    prepared = PreparedBackbone.open(paths.backbone(sweep.backbone))
    backbone = prepared.metadata
    method = study.methods[sweep.method]
    empty = build_model(paths.backbone(sweep.backbone), method, len(data.classes), model.spec.seed)
    trained = {name: torch.from_numpy(each) for name, each in model.parameters.items()}
    save_parameters(empty, trained, folder)
    features = read_features(study, paths, release)
    head = build_head(features.width, len(data.classes)) if features else None
    if tokenizer is not None:
        tokenizer.export(folder / TOKENIZER)
    return Network.model_validate(
        {
            "library": backbone.architecture.library,
            "architecture": backbone.architecture.name,
            "arguments": backbone.architecture.arguments,
            "backbone": backbone.checksum,
            "weights": prepared.weights_checksum,
            "classes": list(data.classes),
            "kind": backbone.kind,
            "mean": list(backbone.mean),
            "std": list(backbone.std),
            "shape": list(data.shape),
            "resize": Resize.of(study.datasets[sweep.dataset])
            if backbone.kind == "image"
            else None,
            "tokenizer": backbone.tokenizer,
            "method": method,
            "pretraining": _without_paths_and_times(backbone.pretraining),
            "features": features,
            **stated(empty, head),
        }
    )


def read_features(study: Study, paths: Paths, release: Release) -> ReleasedFeatures | None:
    """Return what the head of a release reads; None if it is the network's own head.

    Where and how features are read depends on the shapes of inputs alone, so one test example shows it.
    """
    sweep = study.sweeps[release.sweep]
    features = own_features(study, sweep.problem.name)
    if features is None:
        return None
    data = PreparedDataset.open(paths.dataset(sweep.dataset))
    run = FeatureRun(
        data.metadata,
        PreparedBackbone.open(paths.backbone(sweep.backbone)),
        features,
        torch.device("cpu"),
    )
    width = run(data.test_inputs[:1]).shape[1]
    read = run.network
    return ReleasedFeatures.model_validate(
        {
            **features.model_dump(),
            **stated_tap(read.tap),
            "reduction": read.reduction,
            "prefix_tokens": read.prefix_tokens if read.reduction == "mean_of_tokens" else 0,
            "width": width,
        }
    )


def _without_paths_and_times(pretraining: Mapping[str, Any]) -> dict[str, Any]:
    """Remove local paths and times from a description of weights."""
    return {key: each for key, each in pretraining.items() if key not in ("path", "seconds")}
