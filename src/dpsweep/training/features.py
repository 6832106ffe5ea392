"""Features of frozen networks, computed once for a (dataset, backbone, layer) and read by every trial.

They are a prepared dataset of kind ``features``: float32 (N, features) and the labels, mapped into
memory and checked against checksums at every opening. Their metadata names the dataset, the backbone
and the version that they were computed from, so features of other ones are never read.
"""

import logging
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dpsweep.data import prepared
from dpsweep.gradients import UnsupportedModelError
from dpsweep.gradients.checks import check_passes, refuse_mixing
from dpsweep.gradients.engines import full_precision
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.models.build import build_model
from dpsweep.models.preprocess import make_preprocess
from dpsweep.models.representation import Representation, represent
from dpsweep.study import Paths, Study
from dpsweep.study.cells import FeatureSource
from dpsweep.study.fingerprints import check_settings
from dpsweep.study.networks import BackboneError, Features, HeadOnly
from dpsweep.training.device import default_device
from dpsweep.training.processes import interruption

log = logging.getLogger(__name__)

VERSION = 1
"""Raise it when the same network would give other features: older ones are then computed again."""

_BATCH = 128
_CHECKED = 3
"""Examples to check the network with before."""


def compute_features(study: Study, paths: Paths, source: FeatureSource) -> prepared.PreparedDataset:
    """Compute features in eval mode and float32, on a GPU if there is one, and write them.

    Args:
        study: the study.
        paths: its files; the dataset and the backbone must exist.
        source: the dataset and the backbone.

    Raises:
        BackboneError: the network has no such layer, does not read such data, or its outputs are not
            finite vectors.
        DatasetError: the dataset is not prepared, or the disk is too small.
        Interrupted: a signal asked to stop.
    """
    check_settings(study, paths, "dataset", source.dataset)
    check_settings(study, paths, "backbone", source.backbone)
    torch.set_num_threads(study.training.threads)
    data = prepared.PreparedDataset.open(paths.dataset(source.dataset))
    backbone = PreparedBackbone.open(paths.backbone(source.backbone))
    backbone.check_reads(data)
    features = study.backbones[source.backbone].features or Features()
    device = default_device()
    run = FeatureRun(data.metadata, backbone, features, device)
    run.check(data.train_inputs)
    identity = _identity(data.metadata, backbone, features)
    known = data.metadata
    folder = paths.features(*source)
    width = run(data.train_inputs[:1]).shape[1]
    log.info(
        "%s: %d features of %d examples on %s",
        folder, width, known.train_size + known.test_size, device.type,
    )  # fmt: skip
    train, test = (
        prepared.Split(_blocks(inputs, run), labels, units=_names(units))
        for inputs, labels, units in (
            (data.train_inputs, data.train_labels, data.train_units),
            (data.test_inputs, data.test_labels, data.test_units),
        )
    )
    return prepared.write_prepared(
        folder,
        name=known.name,
        title=known.title,
        source=known.source,
        revision=known.revision,
        classes=known.classes,
        train=train,
        test=test,
        kind="features",
        skipped=known.skipped,
        ignored=known.ignored,
        features=identity,
    )


def _names(units: npt.NDArray[np.int64] | None) -> npt.NDArray[np.str_] | None:
    """Return names of units in the order of their numbers, so that features have the same numbers."""
    return None if units is None else np.array([f"{unit:019d}" for unit in units], dtype=np.str_)


def open_features(study: Study, paths: Paths, source: FeatureSource) -> prepared.PreparedDataset:
    """Open the features of a dataset.

    Returns:
        A prepared dataset whose inputs are float32 (N, features).

    Raises:
        BackboneError: the backbone is not prepared.
        DatasetError: they are missing, damaged, or were computed from another dataset, backbone or
            layer, or by another version.
    """
    folder = paths.features(*source)
    data = prepared.read_metadata(paths.dataset(source.dataset))
    backbone = PreparedBackbone.open(paths.backbone(source.backbone))
    features = study.backbones[source.backbone].features or Features()
    expected = _identity(data, backbone, features)
    metadata = prepared.read_metadata(folder)
    found = metadata.features.model_dump() if metadata.features else {}
    for key, value in expected.model_dump().items():
        if found.get(key) != value:
            raise prepared.DatasetError(
                f"{folder}: found {key} {found.get(key)}, expected {value}: they were computed "
                "from something else and must be computed again",
                (folder / "metadata.json",),
            )
    return prepared.PreparedDataset.open(folder)


def open_inputs(study: Study, paths: Paths, problem: str) -> prepared.PreparedDataset:
    """Open the inputs of a problem's trials: a dataset, or its features.

    Raises:
        BackboneError: the backbone of features is not prepared.
        DatasetError: they are missing or damaged, or features were computed from something else.
    """
    parts = study.problems[problem]
    check_settings(study, paths, "dataset", parts.dataset)
    check_settings(study, paths, "backbone", parts.backbone)
    if study.features(problem) is not None:
        return open_features(study, paths, FeatureSource(parts.dataset, parts.backbone))
    return prepared.PreparedDataset.open(paths.dataset(parts.dataset))


def _identity(
    data: prepared.DatasetMetadata, backbone: PreparedBackbone, features: Features
) -> prepared.FeatureIdentity:
    return prepared.FeatureIdentity(
        dataset=data.checksum,
        backbone=backbone.metadata.checksum,
        features=features.model_dump(),
        version=VERSION,
    )


def check_representation(network: Representation, inputs: Tensor, others: Tensor) -> None:
    """Check that the features of an example do not depend on other examples.

    Args:
        network: in eval mode; it is not changed.
        inputs: of a few examples, as the network reads them.
        others: inputs of other examples.

    Raises:
        BackboneError: a pass changes the network, or one example's features change with the others.
    """
    name = type(network.network).__name__

    @torch.no_grad()
    def run(model: nn.Module, batch: Tensor) -> Tensor:
        features: Tensor = model(batch)
        return features

    try:
        check_passes(network, run, inputs, others)
        refuse_mixing(network, inputs, others)
    except UnsupportedModelError as error:
        raise BackboneError(f"features of {name}: {error}") from error


class FeatureRun:
    """A function from stored inputs to features on the CPU."""

    def __init__(
        self,
        data: prepared.DatasetMetadata,
        backbone: PreparedBackbone,
        features: Features,
        device: torch.device,
    ) -> None:
        # The head is not used, because the features come before it.
        model = build_model(backbone.folder, HeadOnly(kind="head"), classes=2, seed=0)
        self.network = Representation(model, features).to(device).eval()
        reads = backbone.metadata
        preprocess = make_preprocess(reads.mean, reads.std, data.resize, data.shape)
        self._preprocess, self._device = preprocess.to(device), device

    @full_precision()
    def __call__(self, inputs: np.ndarray) -> Tensor:
        """Return the features of stored inputs; float32 (rows, features)."""
        return represent(self.network, self._read(inputs)).cpu()

    @full_precision()
    def check(self, inputs: np.ndarray) -> None:
        """See `check_representation`."""
        first, last = inputs[:_CHECKED], inputs[-_CHECKED:]
        check_representation(self.network, self._read(first), self._read(last))

    def _read(self, inputs: np.ndarray) -> Tensor:
        batch: Tensor = self._preprocess(torch.from_numpy(inputs.copy()).to(self._device))
        return batch


def _blocks(
    inputs: np.ndarray, run: Callable[[np.ndarray], Tensor]
) -> Iterator[npt.NDArray[np.float32]]:
    """Yield the features of a split, batch by batch."""
    advance = prepared.progress("features", len(inputs))
    for start in range(0, len(inputs), _BATCH):
        if stop := interruption(saved=False):
            raise stop
        block = run(inputs[start : start + _BATCH]).numpy()
        yield block
        advance(len(block))
