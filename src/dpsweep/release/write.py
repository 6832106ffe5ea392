"""From a trained model to the folder of its release, which appears whole or not at all."""

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from dpsweep.data.prepared import read_metadata
from dpsweep.files import atomic_path, checksum, write_checked_json, write_text
from dpsweep.models.architectures import find_head
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.models.build import build_model, trainable_parameters
from dpsweep.privacy.tuning_noise import TuningNoise
from dpsweep.release import CARD, CERTIFICATE, FROZEN, TRAINED, ReleaseError
from dpsweep.release.card import model_card
from dpsweep.release.certificate import (
    Certificate,
    Network,
    Setting,
    Split,
    certify_tuning,
    second_opinion,
)
from dpsweep.release.train import Candidate, Schedules, TrainedModel, train_release
from dpsweep.study import Study
from dpsweep.study.config import Release
from dpsweep.study.config.datasets import shares_examples
from dpsweep.study.paths import Paths

log = logging.getLogger(__name__)

# transformers' networks lie inside of dpsweep's wrapper; a reader of the release has no wrapper.
_WRAPPER = "network."
_UNFINISHED = ".partial-release-"


def earlier_sweeps(study: Study, paths: Paths, release: Release) -> list[str]:
    """The sweeps that have trained on a release's data: whatever was chosen by them leaks."""
    source = study.datasets[study.sweeps[release.sweep].dataset].source
    return [
        name
        for name, sweep in study.sweeps.items()
        if shares_examples(study.datasets[sweep.dataset].source, source)
        and any((paths.cell(cell) / "trials.parquet").exists() for cell in study.sweep_cells(name))
    ]


def write_release(study: Study, paths: Paths, release: Release) -> Path:
    """Train the model of a study's release and write its folder.

    A call waits until no other one writes this folder, on any machine that shares the disk: of two that
    train at once, the one with fewer trials would be the first to end.

    Returns:
        The folder.

    Raises:
        CalibrationError: the total epsilon cannot be had.
        CellError: the prepared data is of another size than the study's.
        ReleaseError: the folder is there, or the held-out part is too small.
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
        shutil.rmtree(left)  # by a call that was killed while it wrote
    swept = earlier_sweeps(study, paths, release)
    if swept:
        log.warning(
            "%s: these sweeps have trained on the same data, and what was chosen by looking at them is "
            "not covered by epsilon. The certificate names them",
            ", ".join(swept),
        )
    model, tuning, score = train_release(study, paths, release)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=_UNFINISHED) as unfinished:
        made = Path(unfinished) / "release"
        made.mkdir()
        network = _write_parameters(study, paths, release, model, made)
        certificate = _certificate(study, release, model, tuning, score, network, swept, made)
        write_text(made / CARD, model_card(certificate))
        write_checked_json(made / CERTIFICATE, certificate.model_dump(mode="json"))
        _refuse_another(folder)
        made.replace(folder)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other call holds the lock beside a folder, then hold it."""
    path = folder.with_name(f".{folder.name}.lock")
    lock = _locked(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.close()


def _locked(path: Path) -> TextIO:
    while True:
        lock = path.open("a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("another call makes the same release; waiting for its end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:  # some network file systems have no locks
            log.warning("%s: no lock (%s); start no other call beside this one", path, error)
            return lock
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.fileno()), path.stat()):
                return lock
        lock.close()  # the call that held it has removed the file


def _refuse_another(folder: Path) -> None:
    """Raise a `ReleaseError` where there is a release already."""
    # An empty folder holds no model.
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ReleaseError(
            f"{folder}: exists. A second model of the same data spends epsilon a second time, and no "
            "model can be made again; move the folder away if you mean it"
        )


def _write_parameters(
    study: Study, paths: Paths, release: Release, model: TrainedModel, folder: Path
) -> Network:
    """Write both files of parameters, and say what they belong to."""
    sweep = study.sweeps[release.sweep]
    data = read_metadata(paths.dataset(sweep.dataset))
    backbone = PreparedBackbone.open(paths.backbone(sweep.backbone)).metadata
    method = study.methods[sweep.method]
    empty = build_model(paths.backbone(sweep.backbone), method, len(data.classes), model.spec.seed)
    trained = {name: torch.from_numpy(each) for name, each in model.parameters.items()}
    save_parameters(empty, trained, folder)
    return Network(
        library=backbone.architecture.library,
        architecture=backbone.architecture.name,
        arguments=backbone.architecture.arguments,
        classes=list(data.classes),
        kind="text" if backbone.tokenizer else "image",
        mean=list(backbone.mean),
        std=list(backbone.std),
        shape=list(data.shape),
        resize=data.resize.model_dump(mode="json") if data.resize else None,
        tokenizer=backbone.tokenizer.model_dump(mode="json") if backbone.tokenizer else None,
        method=method.model_dump(mode="json", exclude={"title", "engine"}),
        head_layers=head_layers(empty),
        pretraining=dict(_plain(backbone.pretraining)),
        trained_parameters=sum(each.size for each in model.parameters.values()),
    )


def _plain(pretraining: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What may be said of the public weights: no path of this machine, no times."""
    return ((key, pretraining[key]) for key in pretraining if key not in ("path", "seconds"))


def head_layers(model: nn.Module) -> list[str]:
    """The linear layers of a model's head, by the names that a reader of the release sees."""
    head = find_head(model)
    return sorted(
        name.removeprefix(_WRAPPER)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and head.holds(f"{name}.weight")
    )


def save_parameters(model: nn.Module, trained: Mapping[str, Tensor], folder: Path) -> None:
    """Write the trained parameters, and all else of a model's state.

    Args:
        model: as it was before training.
        trained: the values of its trainable parameters, by name.
        folder: where both files go.
    """
    own = trainable_parameters(model).keys()
    _save(folder / TRAINED, trained)
    _save(
        folder / FROZEN,
        {name: each for name, each in model.state_dict().items() if name not in own},
    )


def _save(path: Path, state: Mapping[str, Tensor]) -> None:
    plain = {name.removeprefix(_WRAPPER): each.detach().clone() for name, each in state.items()}
    with atomic_path(path) as partial:
        save_file(plain, partial)


def _certificate(
    study: Study,
    release: Release,
    model: TrainedModel,
    tuning: TuningNoise | None,
    score: float,
    network: Network,
    swept: list[str],
    folder: Path,
) -> Certificate:
    sweep, schedules = study.sweeps[release.sweep], Schedules.of(study, release)
    spec = model.spec

    def setting(candidate: Candidate) -> Setting:
        cell, rate = candidate
        _, size, steps = schedules(cell)
        return Setting(
            epochs=cell.epochs,
            batch_size=size,
            steps=steps,
            clipping_bound=cell.clipping_bound,
            learning_rate=rate,
        )

    candidates = list(map(setting, release.candidates(sweep.problem.name)))
    return Certificate(
        title=study.title,
        dataset=study.datasets[sweep.dataset].title,
        epsilon=release.epsilon,
        delta=study.privacy.delta,
        certified_epsilon=tuning.total_epsilon if tuning else model.noise.certified_epsilon,
        pld_epsilon=second_opinion(model.noise, tuning),
        setting=setting(model.candidate),
        step_rounding=study.privacy.step_rounding,
        optimizer=spec.optimizer,
        precision=spec.precision,
        engine=spec.engine,
        device=spec.device,
        noise=model.noise.to_dict(),
        split=Split(
            examples=schedules.examples,
            holdout_share=release.held_out,
            held_out=schedules.held_out,
        ),
        tuning=certify_tuning(tuning, candidates, score) if tuning else None,
        earlier_sweeps=swept,
        test_accuracy=model.record["accuracy"],
        network=network,
        versions=model.record["versions"],
        files={name: checksum(folder / name) for name in (TRAINED, FROZEN)},
    )
