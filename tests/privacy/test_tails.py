"""The delta that is lost by noise without tails, and the generators in use."""

import math
import re
from dataclasses import replace

import pytest
from scipy import integrate, special
from tests.training.tiny_study import N, tiny_sections

from dpsweep.cli.studies import study_calibrations
from dpsweep.privacy import Calibration, CalibrationError
from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.gaussian import GENERATORS, outside_probability, tail_costs
from dpsweep.privacy.record import write_calibration
from dpsweep.study import Study
from dpsweep.study.paths import Paths


@pytest.mark.parametrize("shift", [0.0, 0.2, 1.0, 2.3, 6.0])
@pytest.mark.parametrize("radius", [1.0, 5.768, 8.65, 12.2])
def test_probability_is_the_integral_of_the_density(shift, radius):
    def density(length: float) -> float:
        return length * math.exp(-((length - shift) ** 2) / 2) * special.ive(0, shift * length)

    integral, _ = integrate.quad(density, radius, radius + 40, epsabs=0, limit=200)
    assert outside_probability(shift, radius) == pytest.approx(integral, rel=1e-6)


def calibration(noise_multiplier: float) -> Calibration:
    return Calibration(8.0, 1e-5, 87002, 256, 680, noise_multiplier, 8.0, "prv", 8.0, None, "")


def test_generators_in_use_have_a_negligible_cost():
    head, *lines = tail_costs([calibration(0.4385613714925153), calibration(10.0)])
    assert head.startswith("2 calibrations")
    for line, generator in zip(lines, GENERATORS, strict=True):
        assert line.startswith(f"  {generator.name}, up to {generator.radius:.2f}: at most ")
    assert ["in 0, above all" in line for line in lines] == [True, True, False, False]
    assert "above all of it in 1" in next(line for line in lines if "float32, CPU" in line)


def test_a_generator_in_use_that_costs_much_is_refused():
    """So little noise reveals an example with every generator."""
    costs = tail_costs([calibration(0.12)])
    for _ in range(1 + len(GENERATORS)):  # the refusal comes after all costs
        next(costs)
    with pytest.raises(
        CalibrationError, match=r"Philox.*, CUDA\): found a cost of more than 0.001"
    ):
        next(costs)


def test_calibrations_of_a_study_are_read_or_made(tmp_path):
    study, paths = Study.model_validate(tiny_sections({}, {"kind": "film"})), Paths(tmp_path)
    (made,) = study_calibrations(study, paths)
    assert made == calibrate(8.0, study.privacy.delta, N, N, 1)
    file = paths.noise(study, "digits", 8.0, 1, "full")
    stored = replace(made, opacus_note="not asked for here")
    write_calibration(file, stored)
    assert study_calibrations(study, paths) == [stored]
    write_calibration(file, replace(made, steps=made.steps + 1))
    with pytest.raises(CalibrationError, match=re.escape(str(file))):
        study_calibrations(study, paths)
