"""The part of a certificate that a study's section `release` decides before anything is trained."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from dpsweep.base.files import canonical_json, read_checked_json
from dpsweep.release import CERTIFICATE, ReleaseError
from dpsweep.release.certificate import DataSplit, Setting, plain_method
from dpsweep.study import Cell, Study
from dpsweep.study.cells import optimizer_steps
from dpsweep.study.config import Release, Sweep
from dpsweep.study.shares import held_out_rows

Candidate = tuple[Cell, float]
"""A setting of a release: its cell, and its learning rate."""


@dataclass(frozen=True)
class ReleasePlan:
    """The settings that a study's section `release` names, and the data that they train on."""

    study: Study
    release: Release

    @property
    def sweep(self) -> Sweep:
        """The sweep whose problem is trained on."""
        return self.study.sweeps[self.release.sweep]

    @cached_property
    def split(self) -> DataSplit:
        """The training set and its held-out part."""
        examples = self.study.datasets[self.sweep.dataset].train_size
        share = self.release.held_out
        held_out = len(held_out_rows(examples, share)) if share else 0
        return DataSplit(examples=examples, holdout_share=share, held_out=held_out)

    @property
    def candidates(self) -> list[Candidate]:
        """The cells and learning rates; one where the setting is fixed."""
        return self.release.candidates(self.sweep.problem.name)

    def schedule(self, cell: Cell) -> tuple[int, int, int]:
        """(N, B, T) of a candidate."""
        train_size = self.split.train_size
        size = train_size if isinstance(cell.batch_size, str) else cell.batch_size
        rounding = self.study.privacy.step_rounding
        return train_size, size, optimizer_steps(train_size, size, cell.epochs, rounding)

    def setting(self, candidate: Candidate) -> Setting:
        """A candidate as a certificate has it."""
        cell, rate = candidate
        _, size, steps = self.schedule(cell)
        return Setting.model_validate(
            {
                "epochs": cell.epochs,
                "batch_size": size,
                "steps": steps,
                "clipping_bound": cell.clipping_bound,
                "learning_rate": rate,
            }
        )

    def decided(self) -> dict[str, Any]:
        """The fields of a certificate that the section decides, as they are in the file.

        Without those that training adds: of several candidates, which one won.
        """
        study, release, sweep = self.study, self.release, self.sweep
        backbone = study.backbones[sweep.backbone]
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
            "dataset": study.datasets[sweep.dataset].title,
            "epsilon": release.epsilon,
            "delta": study.privacy.delta,
            "optimizer": sweep.optimizer,
            "split": self.split.model_dump(mode="json"),
            "network": {
                "library": backbone.library,
                # A name that stands elsewhere is looked up when the network is prepared.
                **({} if backbone.described_at else {"architecture": backbone.architecture}),
                "method": plain_method(study.methods[sweep.method]),
            },
            **(private if release.selection == "private" else fixed),
        }


def compare(folder: Path, study: Study, release: Release) -> None:
    """Compare the certificate in a folder with a section `release`.

    Args:
        folder: of a release.
        study: the study that has the section.
        release: the section.

    Raises:
        ReleaseError: they differ; a line for each difference shows what is in both.
        DamagedFileError: the certificate was damaged.
    """
    found = read_checked_json(folder / CERTIFICATE)
    differences = list(_differences("", found, ReleasePlan(study, release).decided()))
    if differences:
        raise ReleaseError(
            "\n  ".join(
                [
                    f"{folder}: holds a release of other numbers than the study's section release. No model "
                    "can be made again; take the section back, or move the folder away if you mean another "
                    "release, which spends epsilon a second time:",
                    *differences,
                ]
            )
        )


def _differences(name: str, found: Any, expected: Any) -> Iterator[str]:
    if isinstance(found, dict) and isinstance(expected, dict):
        for key, value in expected.items():
            yield from _differences(f"{name}.{key}".lstrip("."), found.get(key), value)
    elif canonical_json(found) != canonical_json(expected):
        yield f"{name}: the certificate has {_text(found)}, the section {_text(expected)}"


def _text(value: Any) -> str:
    return "one" if isinstance(value, dict) else "none" if value is None else canonical_json(value)
