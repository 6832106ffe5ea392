"""The part of a certificate that follows from a study's section `release`, before training."""

import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dpsweep.base.files import fingerprint, read_checked_json
from dpsweep.data.prepared import DatasetError, Resize, read_metadata
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.privacy import Sampling
from dpsweep.release import CERTIFICATE
from dpsweep.release.certificate import DataSplit, Setting, differences, plain_method
from dpsweep.release.files import refuse
from dpsweep.release.ledger import Ledger
from dpsweep.study import Cell, Study, StudyError
from dpsweep.study.backbones import BackboneError, Features
from dpsweep.study.cells import optimizer_steps
from dpsweep.study.datasets import Dataset, Origins, held_out_rows, origins
from dpsweep.study.paths import Paths
from dpsweep.study.release import Release
from dpsweep.study.sweeps import Sweep

Candidate = tuple[Cell, float]
"""A setting of a release: its cell and learning rate."""


@dataclass(frozen=True)
class ReleasePlan:
    """The settings and the data of a study's section `release`."""

    study: Study

    @property
    def release(self) -> Release:
        """The section.

        Raises:
            StudyError: the study has none.
        """
        if self.study.release is None:
            raise StudyError(
                "release: missing; allowed: a section that says what is trained (docs/release.md has an "
                "example)"
            )
        return self.study.release

    @property
    def sweep(self) -> Sweep:
        """The sweep with the problem of the release."""
        return self.study.sweeps[self.release.sweep]

    @property
    def dataset(self) -> Dataset:
        """The section of its dataset."""
        return self.study.datasets[self.sweep.dataset]

    @property
    def features(self) -> Features | None:
        """The features of the head, if it is not the network's own head."""
        features = self.study.features(self.sweep.problem.name)
        return None if features == Features() else features

    @cached_property
    def split(self) -> DataSplit:
        """The training set and its held-out part."""
        dataset = self.dataset
        examples = dataset.protected
        share = self.release.held_out
        held_out = len(held_out_rows(examples, share)) if share else 0
        unit, rows = (dataset.unit, dataset.rows_per_unit) if dataset.has_units else (None, None)
        return DataSplit(
            examples=examples,
            unit=unit,
            rows_per_unit=rows,
            holdout_share=share,
            held_out=held_out,
        )

    @property
    def candidates(self) -> list[Candidate]:
        """The cells and learning rates; only one if the setting is fixed."""
        return self.release.candidates(self.sweep.problem.name)

    def sampling(self, cell: Cell) -> Sampling:
        """Return the sampling of a candidate."""
        train_size = self.split.train_size
        size = train_size if isinstance(cell.batch_size, str) else cell.batch_size
        rounding = self.study.privacy.step_rounding
        steps = optimizer_steps(train_size, size, cell.epochs, rounding)
        return Sampling(train_size, size, steps)

    def setting(self, candidate: Candidate) -> Setting:
        """Return a candidate in the form of a certificate."""
        cell, rate = candidate
        sampling = self.sampling(cell)
        return Setting.model_validate(
            {
                "epochs": cell.epochs,
                "batch_size": sampling.batch_size,
                "steps": sampling.steps,
                "clipping_bound": cell.clipping_bound,
                "learning_rate": rate,
            }
        )

    def decided(self) -> dict[str, Any]:
        """Return the fields of a certificate that follow from the section, as JSON.

        Fields that depend on training are left out, such as the winner of several candidates.
        """
        study, release, sweep = self.study, self.release, self.sweep
        backbone, problem = study.backbones[sweep.backbone], sweep.problem.name
        dataset, features = self.dataset, self.features
        automatic = any(cell.clipping_bound == "automatic" for cell, _ in self.candidates)
        mean, std = map(list, backbone.normalisation)
        settings = [self.setting(each).model_dump(mode="json") for each in self.candidates]
        private = {
            "tuning": {
                "mean_trials": release.mean_trials,
                "shape": release.shape,
                "candidates": settings,
            }
        }
        fixed = {"tuning": None, "setting": settings[0]}
        return {
            "dataset": dataset.title,
            "epsilon": release.epsilon,
            "delta": study.privacy.delta,
            "step_rounding": study.privacy.step_rounding,
            "automatic_clipping_gamma": study.training.automatic_clipping_gamma
            if automatic
            else None,
            "optimizer": study.optimizer(sweep.problem.optimizer).identity(),
            "engine": study.engine(problem),
            **self.split.guarantee(),
            "split": self.split.model_dump(mode="json"),
            "network": {
                "library": backbone.library,
                # Preparing the network reads this name from the place of its description.
                **({} if backbone.described_at else {"architecture": backbone.architecture}),
                # A file beside the weights, or the tokenizer, may add arguments.
                "arguments": dict(backbone.arguments),
                "kind": dataset.kind,
                "mean": mean,
                "std": std,
                # The shape of stored images is left out: it may be smaller than the network's input.
                **(
                    {"resize": Resize.of(dataset).model_dump(mode="json")}
                    if dataset.kind == "image"
                    else {"resize": None, "shape": list(dataset.input_shape)}
                ),
                "method": plain_method(study.methods[sweep.method]),
                "features": features.model_dump(mode="json") if features else None,
            },
            **(private if release.selection == "private" else fixed),
        }


def compare(
    folder: Path, study: Study, paths: Paths | None = None, ledger: Path | None = None
) -> None:
    """Compare the certificate in a folder with a section `release`, its data and its backbone.

    Args:
        folder: of a release.
        study: the study with the section.
        paths: of the study's data and backbone; they are compared if they are prepared.
        ledger: has the checksum and the sources of the data, which certificates do not contain.

    Raises:
        ReleaseError: they differ; the message has a line with both values for each difference.
        DamagedFileError: the certificate was damaged.
        StudyError: the study has no section.
    """
    found = read_checked_json(folder / CERTIFICATE)
    plan = ReleasePlan(study)
    refuse(
        f"{folder}: has a release with other settings than `release` in the study. No model can be made "
        "again: take the section back, or move the folder away for another release, which spends epsilon a "
        "second time:",
        itertools.chain(
            differences("", found, plan.decided(), partial=True),
            _numbers_that_differ(found, plan),
            _data_that_differ(found, plan, paths, ledger),
        ),
    )


def _numbers_that_differ(found: dict[str, Any], plan: ReleasePlan) -> Iterator[str]:
    study, dataset = plan.study, plan.dataset
    if len(found["network"]["classes"]) != dataset.classes:
        yield (
            f"classes: the certificate has {len(found['network']['classes'])}, the dataset "
            f"{dataset.classes}"
        )
    backbone = study.backbones[plan.sweep.backbone]
    if backbone.library != "transformers" and not backbone.described_at:
        added = dict.fromkeys(found["network"]["arguments"].keys() - backbone.arguments.keys())
        yield from differences(
            "network.arguments", found["network"]["arguments"], added, partial=True
        )
    setting = study.training.precision
    if setting != "auto" and not study.trains_on_vectors(plan.sweep.problem.name):
        yield from differences("precision", found["precision"], setting)


def _data_that_differ(
    found: dict[str, Any], plan: ReleasePlan, paths: Paths | None, ledger: Path | None
) -> Iterator[str]:
    """Compare the data by checksum and source, and the backbone by checksum, if they are prepared."""
    dataset, backbone = plan.sweep.dataset, plan.sweep.backbone
    line = Ledger(ledger).line_of(fingerprint(found)) if ledger else None
    if line is not None:
        place = origins(plan.dataset.source)
        if line.origins != place:
            yield f"data: the model was made of {_places(line.origins)}, the study reads {_places(place)}"
    if paths is None:
        return
    with suppress(DatasetError):
        metadata = read_metadata(paths.dataset(dataset))
        if line is not None and metadata.checksum != line.data:
            yield (
                f"data: the model was made of data with the checksum {line.data}, {paths.dataset(dataset)} "
                f"has {metadata.checksum}"
            )
        names = {"classes": list(metadata.classes), "shape": list(metadata.shape)}
        yield from differences("network", found["network"], names, partial=True)
    with suppress(BackboneError):
        prepared = PreparedBackbone.open(paths.backbone(backbone)).metadata
        yield from differences("network.backbone", found["network"]["backbone"], prepared.checksum)


def _places(found: Origins) -> str:
    return ", ".join("/".join(parts).replace("//", "/") for parts in found)
