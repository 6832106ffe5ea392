"""A calibration file that was edited, damaged or is for another setting is refused in words."""

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dpsweep.base.files import DamagedFileError, read_json, write_checked_json, write_json
from dpsweep.privacy import Calibration, CalibrationError
from dpsweep.privacy.calibration import calibrate, noise_multiplier
from dpsweep.privacy.stored import read_calibration, verify, write_calibration

Edit = Callable[[dict[str, Any]], dict[str, Any]]
SETTING: dict[str, Any] = {"delta": 1e-5, "train_size": 1000, "steps": 20}
SETTINGS = {
    "sampled": SETTING | {"epsilon": 2.0, "batch_size": 100},
    "full batch": SETTING | {"epsilon": 2.0, "batch_size": 1000},
    "without privacy": SETTING | {"epsilon": math.inf, "batch_size": 100},
}
PRIVATE = ["sampled", "full batch"]


@cache
def calibrated(kind: str) -> Calibration:
    return calibrate(**SETTINGS[kind])


def write_edited(path: Path, kind: str, edit: Edit) -> None:
    """Write a calibration with some values changed, and the fingerprint of the changed content."""
    content = calibrated(kind).to_dict()
    write_checked_json(path, content | edit(content))


def for_other_steps(content: dict[str, Any]) -> dict[str, Any]:
    rate = content["batch_size"] / content["train_size"]
    return {"noise_multiplier": noise_multiplier(2.0, 1e-5, rate, 10)}


def for_more_steps(content: dict[str, Any]) -> dict[str, Any]:
    rate = content["batch_size"] / content["train_size"]
    return {"noise_multiplier": noise_multiplier(2.0, 1e-5, rate, 40)}


TAMPERED: dict[str, tuple[Edit, str]] = {
    "half of sigma": (lambda c: {"noise_multiplier": c["noise_multiplier"] / 2}, "which gives"),
    "sigma a percent lower": (
        lambda c: {"noise_multiplier": 0.99 * c["noise_multiplier"]},
        "which gives epsilon 2.0",
    ),
    "tiny sigma": (lambda _: {"noise_multiplier": 1e-6}, "in a single step"),
    "no sigma": (lambda _: {"noise_multiplier": 0.0}, "expected a positive number"),
    "negative sigma": (lambda _: {"noise_multiplier": -1.0}, "expected a positive number"),
    "infinite sigma": (lambda _: {"noise_multiplier": math.inf}, "expected a positive number"),
    "sigma that is no number": (lambda _: {"noise_multiplier": math.nan}, "a positive number"),
    "sigma that is text": (lambda _: {"noise_multiplier": "1"}, "valid number, found '1'"),
    "sigma of fewer steps": (for_other_steps, "which gives"),
    "sigma of more steps": (for_more_steps, "certified_epsilon: found"),
    "twice sigma": (
        lambda c: {"noise_multiplier": 2 * c["noise_multiplier"]},
        "certified_epsilon: found",
    ),
    "other epsilon": (lambda _: {"epsilon": 8.0}, "epsilon: found 8.0, expected 2.0"),
    "without privacy": (lambda _: {"epsilon": math.inf}, "epsilon: found inf, expected 2.0"),
    "other delta": (lambda _: {"delta": 1e-3}, "delta: found 0.001, expected 1e-05"),
    "other size": (lambda _: {"train_size": 999}, "train_size: found 999, expected 1000"),
    "other batch": (lambda _: {"batch_size": 99}, "batch_size: found 99, expected"),
    "other steps": (lambda _: {"steps": 19}, "steps: found 19, expected 20"),
    "lower certificate": (lambda _: {"certified_epsilon": 1.0}, "certified_epsilon: found 1.0"),
    "higher certificate": (lambda _: {"certified_epsilon": 2.01}, "at most 2"),
    "infinite certificate": (lambda _: {"certified_epsilon": math.inf}, "expected about"),
    "no certificate": (lambda _: {"certified_epsilon": None}, "found None"),
}


@pytest.mark.parametrize("kind", PRIVATE)
@pytest.mark.parametrize("tampered", TAMPERED)
def test_tampered_files_are_refused(tmp_path: Path, kind: str, tampered: str) -> None:
    edit, message = TAMPERED[tampered]
    path = tmp_path / "noise.json"
    write_edited(path, kind, edit)
    with pytest.raises(CalibrationError, match=message) as raised:
        read_calibration(path, **SETTINGS[kind])
    assert str(raised.value).startswith(f"{path}: ")
    assert raised.value.remake == (path,)


@pytest.mark.parametrize("kind", SETTINGS)
def test_what_was_written_is_read(tmp_path: Path, kind: str) -> None:
    write_calibration(tmp_path / "noise.json", calibrated(kind))
    assert read_calibration(tmp_path / "noise.json", **SETTINGS[kind]) == calibrated(kind)


def test_no_calibration_of_the_paper_is_refused() -> None:
    measured = read_json(Path(__file__).parents[2] / "benchmarks/results/calibration.json")
    for row in measured["rows"][::20]:
        found = dict(zip(measured["columns"], row, strict=True))
        del found["cpu_seconds"]
        full = found["batch_size"] == found["train_size"]
        verify(
            Calibration(
                **found,
                delta=measured["delta"],
                accountant="analytic gaussian" if full else "prv",
                opacus_epsilon=None,
                opacus_note="",
            )
        )


@pytest.mark.parametrize("edit", [{"noise_multiplier": 1e-9}, {"certified_epsilon": 8.0}])
def test_noise_without_privacy_is_refused(tmp_path: Path, edit: dict[str, Any]) -> None:
    path = tmp_path / "noise.json"
    write_edited(path, "without privacy", lambda _: edit)
    ((name, value),) = edit.items()
    with pytest.raises(CalibrationError, match=f"{name}: found {value}, expected"):
        read_calibration(path, **SETTINGS["without privacy"])


@pytest.mark.parametrize("field", ["certified_epsilon", "pld_epsilon", "cumulative_noise"])
def test_the_smallest_edit_breaks_the_fingerprint(tmp_path: Path, field: str) -> None:
    path = tmp_path / "noise.json"
    write_calibration(path, calibrated("sampled"))
    content = read_json(path)
    write_json(path, content | {field: math.nextafter(content[field], 0)})
    with pytest.raises(DamagedFileError, match="edited"):
        read_calibration(path, **SETTINGS["sampled"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "damaged"),
        ("[]", "damaged"),
        ("{}", "epsilon: Field required; .*steps: Field required"),
        ('{"epsilon": 2.0', "damaged"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "noise.json"
    path.write_text(text)
    with pytest.raises(CalibrationError, match=problem) as raised:
        read_calibration(path, **SETTINGS["sampled"])
    assert raised.value.remake == (path,)


def test_a_missing_file_is_to_be_made(tmp_path: Path) -> None:
    with pytest.raises(CalibrationError, match="no such calibration") as raised:
        read_calibration(tmp_path / "noise.json", **SETTINGS["sampled"])
    assert raised.value.remake == (tmp_path / "noise.json",)


@pytest.mark.parametrize("epsilon", [0.25, 0.5, 1.0, 2.0, 4.0, 8.0])
def test_a_single_step_of_the_full_batch_is_believed(epsilon: float) -> None:
    verify(calibrate(epsilon, 1e-5, 45, 45, 1))
