"""Calibration files that were edited, damaged or are for another setting are refused with a clear message."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dpsweep.base.files import DamagedFileError, read_json, write_checked_json, write_json
from dpsweep.privacy import Calibration, CalibrationError, Sampling
from dpsweep.privacy.calibration import calibrate, calibrate_sampling, noise_multiplier
from dpsweep.privacy.stored import read_calibration, verify, write_calibration

SETTINGS = {
    "sampled": (2.0, 1e-5, Sampling(1000, 100, steps=20)),
    "full batch": (2.0, 1e-5, Sampling(1000, 1000, steps=20)),
    "without privacy": (math.inf, 1e-5, Sampling(1000, 100, steps=20)),
}


@cache
def calibrated(kind: str) -> Calibration:
    return calibrate_sampling(*SETTINGS[kind])


def sigma_of(steps: int) -> Callable[[Calibration], float]:
    return lambda noise: noise_multiplier(2.0, 1e-5, replace(noise.sampling, steps=steps))


SIGMA = "noise_multiplier"
TAMPERED = [
    (SIGMA, lambda noise: noise.noise_multiplier / 2, "which gives"),
    (SIGMA, lambda noise: 0.99 * noise.noise_multiplier, "which gives epsilon 2.0"),
    (SIGMA, lambda noise: 2 * noise.noise_multiplier, "certified_epsilon: found"),
    (SIGMA, sigma_of(steps=10), "which gives"),
    (SIGMA, sigma_of(steps=40), "certified_epsilon: found"),
    (SIGMA, 1e-6, "in a single step"),
    (SIGMA, 0.0, "expected a positive number"),
    (SIGMA, -1.0, "expected a positive number"),
    (SIGMA, math.inf, "expected a positive number"),
    (SIGMA, math.nan, "a positive number"),
    (SIGMA, "1", "valid number, found '1'"),
    ("epsilon", 8.0, "epsilon: found 8.0, expected 2.0"),
    ("epsilon", math.inf, "epsilon: found inf, expected 2.0"),
    ("delta", 1e-3, "delta: found 0.001, expected 1e-05"),
    ("train_size", 999, "train_size: found 999, expected 1000"),
    ("batch_size", 99, "batch_size: found 99, expected"),
    ("steps", 19, "steps: found 19, expected 20"),
    ("certified_epsilon", 1.0, "certified_epsilon: found 1.0"),
    ("certified_epsilon", 2.01, "at most 2"),
    ("certified_epsilon", math.inf, "expected about"),
    ("certified_epsilon", None, "found None"),
]


@pytest.mark.parametrize(
    ("kind", "name", "value", "message"),
    [
        *((kind, *each) for kind in ("sampled", "full batch") for each in TAMPERED),
        ("without privacy", SIGMA, 1e-9, f"{SIGMA}: found 1e-09, expected"),
        ("without privacy", "certified_epsilon", 8.0, "certified_epsilon: found 8.0, expected"),
    ],
)
def test_tampered_files_are_refused(
    tmp_path: Path, kind: str, name: str, value: Any, message: str
) -> None:
    path = tmp_path / "noise.json"
    edit = {name: value(calibrated(kind)) if callable(value) else value}
    # The fingerprint is that of the changed content.
    write_checked_json(path, calibrated(kind).to_dict() | edit)
    with pytest.raises(CalibrationError, match=message) as raised:
        read_calibration(path, *SETTINGS[kind])
    assert str(raised.value).startswith(f"{path}: ")
    assert raised.value.remake == (path,)


@pytest.mark.parametrize("kind", SETTINGS)
def test_calibrations_are_read_as_written(tmp_path: Path, kind: str) -> None:
    write_calibration(tmp_path / "noise.json", calibrated(kind))
    assert read_calibration(tmp_path / "noise.json", *SETTINGS[kind]) == calibrated(kind)


def test_no_calibration_of_the_paper_is_refused() -> None:
    measured = read_json(Path(__file__).parents[2] / "benchmarks/results/calibration.json")
    for row in measured["rows"][::50]:
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


@pytest.mark.parametrize("field", ["certified_epsilon", "pld_epsilon", "cumulative_noise"])
def test_the_smallest_edit_breaks_the_fingerprint(tmp_path: Path, field: str) -> None:
    path = tmp_path / "noise.json"
    write_calibration(path, calibrated("sampled"))
    content = read_json(path)
    write_json(path, content | {field: math.nextafter(content[field], 0)})
    with pytest.raises(DamagedFileError, match="edited"):
        read_calibration(path, *SETTINGS["sampled"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "no such calibration"),
        ("", "damaged"),
        ("[]", r"should be a dictionary .*found \[\]"),
        ("{}", "epsilon: Field required; .*steps: Field required"),
        ('{"epsilon": 2.0', "damaged"),
    ],
)
def test_errors_about_missing_and_damaged_files_name_the_file_to_remake(
    tmp_path: Path, text: str | None, problem: str
) -> None:
    path = tmp_path / "noise.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CalibrationError, match=problem) as raised:
        read_calibration(path, *SETTINGS["sampled"])
    assert raised.value.remake == (path,)


@pytest.mark.parametrize("epsilon", [0.25, 0.5, 1.0, 2.0, 4.0, 8.0])
def test_a_single_step_of_the_full_batch_is_accepted(epsilon: float) -> None:
    verify(calibrate(epsilon, 1e-5, 45, 45, 1))
