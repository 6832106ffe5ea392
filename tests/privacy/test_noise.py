"""Calibrations that are refused, and the delta that noise without tails loses."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from scipy.integrate import quad
from scipy.special import ive

from dpsweep.base.files import DamagedFileError, read_json, write_checked_json, write_json
from dpsweep.privacy import Calibration, CalibrationError, Sampling
from dpsweep.privacy.calibration import calibrate_sampling, certify_again, noise_multiplier, verify
from dpsweep.privacy.noise import (
    GENERATORS,
    outside_probability,
    read_calibration,
    tail_costs,
    write_calibration,
)

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


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (SIGMA, lambda noise: noise.noise_multiplier / 2, "has the certified epsilon"),
        (SIGMA, lambda noise: 0.99 * noise.noise_multiplier, "has the certified epsilon 2.0"),
        (SIGMA, lambda noise: 2 * noise.noise_multiplier, "has the certified epsilon"),
        (SIGMA, sigma_of(steps=10), "has the certified epsilon"),
        (SIGMA, sigma_of(steps=40), "has the certified epsilon"),
        *((SIGMA, each, f"{SIGMA}: found") for each in (1e-6, 0.0, -1.0, math.inf, math.nan)),
        *(("certified_epsilon", each, "found") for each in (1.0, 1.9999, 2.01, math.inf)),
    ],
)
@pytest.mark.parametrize("kind", ["sampled", "full batch"])
def test_numbers_that_do_not_belong_together_are_refused(kind, name, value, message):
    noise = calibrated(kind)
    edit = {name: value(noise) if callable(value) else value}
    with pytest.raises(CalibrationError, match=message):
        verify(replace(noise, **edit))


@pytest.mark.parametrize("edit", [{SIGMA: 1e-9}, {"certified_epsilon": 8.0}])
def test_training_without_privacy_has_no_noise(edit):
    noise = calibrated("without privacy")
    verify(noise)
    with pytest.raises(CalibrationError, match=r": found .*, expected"):
        verify(replace(noise, **edit))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({SIGMA: "1"}, "valid number, found '1'"),
        ({"epsilon": 8.0}, "epsilon: found 8.0, expected 2.0"),
        ({"epsilon": math.inf}, "epsilon: found inf, expected 2.0"),
        ({"delta": 1e-3}, "delta: found 0.001, expected 1e-05"),
        ({"train_size": 999}, "train_size: found 999, expected 1000"),
        ({"batch_size": 99}, "batch_size: found 99, expected"),
        ({"steps": 19}, "steps: found 19, expected 20"),
        ({"certified_epsilon": None}, "found None"),
        (None, "no such calibration"),
        ("", "damaged"),
        ("[]", r"should be a dictionary .*found \[\]"),
        ("{}", "epsilon: Field required; .*steps: Field required"),
        ('{"epsilon": 2.0', "damaged"),
    ],
)
def test_files_for_another_setting_and_damaged_files_are_refused(tmp_path, content, message):
    """A mapping has changed fields, with the fingerprint of the changed content."""
    path = tmp_path / "noise.json"
    if isinstance(content, dict):
        write_checked_json(path, calibrated("sampled").to_dict() | content)
    elif content is not None:
        path.write_text(content)
    with pytest.raises(CalibrationError, match=message) as raised:
        read_calibration(path, *SETTINGS["sampled"])
    assert str(raised.value).startswith(f"{path}: ")
    assert raised.value.remake == (path,)


@pytest.mark.parametrize("kind", SETTINGS)
def test_calibrations_are_read_as_written(tmp_path, kind):
    write_calibration(tmp_path / "noise.json", calibrated(kind))
    assert read_calibration(tmp_path / "noise.json", *SETTINGS[kind]) == calibrated(kind)


@pytest.mark.parametrize("accountant", ["prv", "tilted pld"])
def test_a_bound_of_a_former_accountant_stays_if_it_holds(accountant):
    """They proved slightly larger bounds, and stored no epsilon of prv-accountant."""
    noise = calibrated("sampled")
    former = replace(noise, accountant=accountant, prv_epsilon=None, certified_epsilon=2.0)
    verify(former)
    assert certify_again(former) == former
    for wrong in (
        {"certified_epsilon": 0.9999 * noise.certified_epsilon},
        {"certified_epsilon": 2.001},
        {"pld_epsilon": 0.98 * noise.pld_epsilon},
    ):
        assert certify_again(replace(former, **wrong)) == noise  # type: ignore[arg-type]
    with pytest.raises(CalibrationError, match="has the certified epsilon"):
        certify_again(replace(former, noise_multiplier=0.99 * noise.noise_multiplier))


@pytest.mark.parametrize("field", [SIGMA, "certified_epsilon", "pld_epsilon", "cumulative_noise"])
def test_the_smallest_edit_breaks_the_fingerprint(tmp_path, field):
    path = tmp_path / "noise.json"
    write_calibration(path, calibrated("sampled"))
    content = read_json(path)
    write_json(path, content | {field: math.nextafter(content[field], 0)})
    with pytest.raises(DamagedFileError, match="edited"):
        read_calibration(path, *SETTINGS["sampled"])


# -- generators without tails ------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0.0, 0.2, 1.0, 2.3, 6.0])
@pytest.mark.parametrize("radius", [1.0, 5.768, 8.65, 12.2])
def test_probability_is_the_integral_of_the_density(shift, radius):
    def density(length):
        return length * math.exp(-((length - shift) ** 2) / 2) * ive(0, shift * length)

    integral, _ = quad(density, radius, radius + 40, epsabs=0, limit=200)
    assert outside_probability(shift, radius) == pytest.approx(integral, rel=1e-6)


def noise_of(noise_multiplier: float) -> Calibration:
    return Calibration(8.0, 1e-5, 87002, 256, 680, noise_multiplier, 8.0, "prv", 8.0, None, "")


def test_generators_in_use_have_a_negligible_cost():
    head, *lines = tail_costs([noise_of(0.4385613714925153), noise_of(10.0)])
    assert head.startswith("2 calibrations")
    for line, generator in zip(lines, GENERATORS, strict=True):
        assert line.startswith(f"  {generator.name}, up to {generator.radius:.2f}: at most ")
    assert ["in 0, above all" in line for line in lines] == [True, True, False, False]
    assert "above all of it in 1" in next(line for line in lines if "float32, CPU" in line)


def test_a_generator_in_use_that_costs_much_is_refused():
    """So little noise reveals an example with every generator."""
    costs = tail_costs([noise_of(0.12)])
    for _ in range(1 + len(GENERATORS)):  # the refusal comes after all costs
        next(costs)
    with pytest.raises(
        CalibrationError, match=r"Philox.*, CUDA\): found a cost of more than 0.001"
    ):
        next(costs)
