"""Cost in delta of the missing tails of noise generators, over the calibrations of a study."""

import logging
import math
from dataclasses import dataclass

from dpsweep.privacy import Calibration, Sampling
from dpsweep.privacy.calibration import calibrate_sampling
from dpsweep.privacy.gaussian import GENERATORS, NoiseGenerator, tail_delta
from dpsweep.privacy.record import read_calibration
from dpsweep.study import Study
from dpsweep.study.paths import Paths

log = logging.getLogger(__name__)

TOLERATED = 1e-3
"""The largest allowed cost of a generator, as a share of delta."""


@dataclass(frozen=True)
class TailCost:
    """The cost of a noise generator over all calibrations.

    Attributes:
        generator: the generator.
        shares: ``tail_delta`` as a share of delta, one per calibration.
    """

    generator: NoiseGenerator
    shares: list[float]

    @property
    def refused(self) -> bool:
        """Whether dpsweep uses the generator although it costs more than `TOLERATED`."""
        return self.generator.used and max(self.shares, default=0) > TOLERATED


def study_calibrations(study: Study, paths: Paths) -> list[Calibration]:
    """Return every distinct calibration of a study: read if its file exists, otherwise computed.

    Raises:
        CalibrationError: a stored calibration is for another setting, or does not give its epsilon.
        DamagedFileError: a stored calibration was edited or damaged.
    """
    found: dict[tuple[float, Sampling], Calibration] = {}
    for cell in filter(lambda each: math.isfinite(each.epsilon), study.all_cells()):
        dataset = study.problems[cell.problem].dataset
        sampling = study.sampling(dataset, cell.epochs, cell.batch_size)
        if (cell.epsilon, sampling) in found:
            continue
        path = paths.noise(study, dataset, cell.epsilon, cell.epochs, cell.batch_size)
        target = cell.epsilon, study.privacy.delta, sampling
        found[cell.epsilon, sampling] = (
            read_calibration(path, *target) if path.exists() else calibrate_sampling(*target)
        )
        if len(found) % 50 == 0:
            log.info("%d calibrations", len(found))
    return list(found.values())


def tail_costs(calibrations: list[Calibration]) -> list[TailCost]:
    """Return the cost of every generator, in the order of `GENERATORS`."""
    return [
        TailCost(
            generator,
            [
                tail_delta(each.noise_multiplier, each.sampling_rate, each.steps, generator.radius)
                / each.delta
                for each in calibrations
            ],
        )
        for generator in GENERATORS
    ]


def tail_lines(calibrations: list[Calibration]) -> list[str]:
    """Return a headline, and one line with the cost of every generator."""
    lines = [f"{len(calibrations)} calibrations; delta that missing tails alone cost:"]
    for cost in tail_costs(calibrations):
        above = sum(share > TOLERATED for share in cost.shares)
        broken = sum(share > 1 for share in cost.shares)
        lines.append(
            f"  {cost.generator.name}, up to {cost.generator.radius:.2f}: at most "
            f"{max(cost.shares, default=0):.2g} of delta; above {TOLERATED:g} of it in {above}, "
            f"above all of it in {broken}"
        )
    return lines
