"""The part of a certificate that a study's section `release` decides before anything is trained."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpsweep.base.files import canonical_json, read_checked_json
from dpsweep.release import CERTIFICATE, ReleaseError
from dpsweep.release.certificate import DataSplit, Setting, plain_method
from dpsweep.release.train import Candidate, Schedules
from dpsweep.study import Study
from dpsweep.study.config import Release


def setting(candidate: Candidate, schedules: Schedules) -> Setting:
    """Write a candidate down."""
    cell, rate = candidate
    _, size, steps = schedules(cell)
    return Setting.model_validate(
        {
            "epochs": cell.epochs,
            "batch_size": size,
            "steps": steps,
            "clipping_bound": cell.clipping_bound,
            "learning_rate": rate,
        }
    )


def candidates(study: Study, release: Release) -> list[Setting]:
    """The settings of a release; one where it is fixed."""
    schedules = Schedules.of(study, release)
    problem = study.sweeps[release.sweep].problem.name
    return [setting(each, schedules) for each in release.candidates(problem)]


def decided(study: Study, release: Release) -> dict[str, Any]:
    """The fields of a certificate that a section decides, as they are in the file.

    Without those that training adds: of several candidates, which one won.
    """
    sweep, schedules = study.sweeps[release.sweep], Schedules.of(study, release)
    backbone, settings = study.backbones[sweep.backbone], candidates(study, release)
    split = DataSplit(
        examples=schedules.examples, holdout_share=release.held_out, held_out=schedules.held_out
    )
    dumped = [each.model_dump(mode="json") for each in settings]
    return {
        "dataset": study.datasets[sweep.dataset].title,
        "epsilon": release.epsilon,
        "delta": study.privacy.delta,
        "optimizer": sweep.optimizer,
        "split": split.model_dump(mode="json"),
        "network": {
            "library": backbone.library,
            # A name that stands elsewhere is looked up when the network is prepared.
            **({} if backbone.described_at else {"architecture": backbone.architecture}),
            "method": plain_method(study.methods[sweep.method]),
        },
        **(
            {
                "tuning": {
                    "mean_trials": release.mean_trials,
                    "shape": release.shape,
                    "candidates": dumped,
                }
            }
            if release.selection == "private"
            else {"tuning": None, "setting": dumped[0]}
        ),
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
    differences = list(_differences("", found, decided(study, release)))
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
