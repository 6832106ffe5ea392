"""Poisson sampling, calibrated noise and its file, and the quantities that the paper derives from noise.

Sampler (`dpsweep.training.randomness`), accountants and certificates agree on the sampling. The module
imports no accountant.

The second part bounds the privacy that is lost if a noise generator has no tails. A generator that
transforms uniform numbers of k bits by Box and Muller's method draws pairs inside a disc: their squared
length is at most 2 k ln 2. With such noise, a step has outcomes that are possible with a certain example
and impossible without it. Such an outcome reveals the example, so its probability is a lower bound on
delta *at every epsilon*.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidationError,
    model_serializer,
)
from pydantic.dataclasses import dataclass as checked_dataclass

from dpsweep.base.errors import DpsweepError, integer, real
from dpsweep.base.files import checked, mistakes_of, read_json, write_checked_json


class CalibrationError(DpsweepError, ValueError):
    """A privacy target, mechanism or accountant that gives no certified noise multiplier."""


def checked_target(epsilon: float, delta: float, largest: float = math.inf) -> tuple[float, float]:
    """Return both in float64, because bounds computed in float32 do not hold.

    Raises:
        CalibrationError: epsilon is not above 0 and at most ``largest``, or delta not between 0 and 1.
    """
    epsilon = real("epsilon", epsilon, CalibrationError)
    delta = real("delta", delta, CalibrationError)
    if not (0 < epsilon <= largest and 0 < delta < 1):
        most = ", infinity for no privacy" if math.isinf(largest) else f" and at most {largest:g}"
        raise CalibrationError(
            f"found epsilon = {epsilon:g} and delta = {delta:g}; allowed: an epsilon above 0{most}, and a "
            "delta above 0 and below 1"
        )
    return epsilon, delta


@dataclass(frozen=True)
class Sampling:
    """Steps that take each unit of privacy independently, with the same probability.

    >>> sampling = Sampling(units=50_000, batch_size=1000, steps=400)
    >>> sampling.rate, sampling.full_batch
    (0.02, False)

    Attributes:
        units: N, the number of units that are protected one by one: the training examples.
        batch_size: B, the expected number of units in a step, at most N; N is the full batch.
        steps: T.

    Raises:
        CalibrationError: a number is not an integer, or is out of range.
    """

    units: int
    batch_size: int
    steps: int

    def __post_init__(self) -> None:
        # The names are those of the arguments of `calibrate`.
        for field, name in (("units", "train_size"), ("batch_size",) * 2, ("steps",) * 2):
            number = integer(name, getattr(self, field), CalibrationError, least=1)
            object.__setattr__(self, field, number)  # an int, also for integers of numpy
        if self.batch_size > self.units:
            raise CalibrationError(
                f"batch_size = {self.batch_size} exceeds train_size = {self.units}: the largest batch is "
                "the full data"
            )

    @property
    def rate(self) -> float:
        """Probability that a unit takes part in a step, q = B / N."""
        return self.batch_size / self.units

    @property
    def full_batch(self) -> bool:
        """Whether every step takes all units."""
        return self.batch_size == self.units


NoiseQuantity = Literal["effective", "cumulative", "cumulative_effective"]
# Float64 represents integers exactly up to this limit.
_Count = Annotated[StrictInt, Field(ge=1, le=2**53)]


@checked_dataclass(frozen=True)
class Calibration:
    """A noise multiplier, its certified epsilon, and the epsilons of other accountants.

    Attributes:
        epsilon: the target; infinity is training without privacy.
        delta: of the (epsilon, delta) guarantee, add/remove adjacency of single examples.
        train_size: N.
        batch_size: B, the expected batch size; N is the full batch.
        steps: T.
        noise_multiplier: sigma, the standard deviation of the noise over the sensitivity.
        certified_epsilon: proven upper bound on the epsilon of T steps, at most ``epsilon``.
        accountant: the accountant that proved it: "pld" (dp-accounting), "analytic gaussian" (full batch) or
            "none" (epsilon = infinity); in files of earlier versions also "prv" and "tilted pld".
        pld_epsilon: epsilon by dp-accounting, which is the certificate unless the batch is full.
        opacus_epsilon: upper bound by Opacus' PRV accountant, None if it was not computed.
        opacus_note: the reason for None, else empty.
        prv_epsilon: estimate of prv-accountant, which shares no code with dp-accounting. None for full
            batches, and if it would take more than seconds.
    """

    epsilon: StrictFloat
    delta: StrictFloat
    train_size: _Count
    batch_size: _Count
    steps: _Count
    noise_multiplier: StrictFloat
    certified_epsilon: StrictFloat
    accountant: StrictStr
    pld_epsilon: StrictFloat
    opacus_epsilon: StrictFloat | None
    opacus_note: StrictStr
    prv_epsilon: StrictFloat | None = None

    @property
    def sampling(self) -> Sampling:
        """The sampling that the noise is calibrated for.

        Raises:
            CalibrationError: no sampling has these numbers.
        """
        return Sampling(self.train_size, self.batch_size, self.steps)

    @property
    def sampling_rate(self) -> float:
        """Probability that an example takes part in a step, q = B / N."""
        return self.batch_size / self.train_size

    @property
    def cumulative_noise(self) -> float:
        """The paper's sigma sqrt(T): standard deviation of the summed noise of all steps."""
        return self._noise("cumulative")

    @property
    def effective_noise(self) -> float:
        """The paper's sigma / B: standard deviation of the noise in one averaged gradient."""
        return self._noise("effective")

    @property
    def cumulative_effective_noise(self) -> float:
        """The paper's sigma sqrt(T) / B: standard deviation of the noise summed over averaged gradients."""
        return self._noise("cumulative_effective")

    def _noise(self, quantity: NoiseQuantity) -> float:
        return noise(quantity, self.noise_multiplier, self.steps, self.batch_size)

    @model_serializer
    def to_dict(self) -> dict[str, Any]:
        """Return all fields, the sampling rate and the derived quantities, ready for JSON."""
        fields = asdict(self)
        if self.prv_epsilon is None:  # as in files of earlier versions
            del fields["prv_epsilon"]
        return fields | {
            "sampling_rate": self.sampling_rate,
            "cumulative_noise": self.cumulative_noise,
            "effective_noise": self.effective_noise,
            "cumulative_effective_noise": self.cumulative_effective_noise,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Calibration":
        """Rebuild a calibration from `to_dict`, and compute the derived quantities again.

        Raises:
            CalibrationError: a field is missing, or has a wrong type.
        """
        try:
            return TypeAdapter(cls).validate_python(values)
        except ValidationError as error:
            raise CalibrationError("; ".join(mistakes_of(error))) from None


def noise(quantity: NoiseQuantity, noise_multiplier: float, steps: int, batch_size: int) -> float:
    """Return the DP noise of a training run (paper, section on batch size).

    >>> noise("effective", noise_multiplier=2.0, steps=16, batch_size=64)
    0.03125
    >>> noise("cumulative", noise_multiplier=0.5, steps=16, batch_size=64)
    2.0
    >>> noise("cumulative_effective", noise_multiplier=2.0, steps=16, batch_size=64)
    0.125

    ``effective`` is sigma/B, the noise of one averaged gradient; ``cumulative`` is sigma*sqrt(T);
    ``cumulative_effective`` is sigma*sqrt(T)/B.

    Args:
        quantity: which noise.
        noise_multiplier: sigma.
        steps: T, the number of optimizer steps.
        batch_size: B, the expected batch size.
    """
    summed = noise_multiplier if quantity == "effective" else noise_multiplier * math.sqrt(steps)
    return summed if quantity == "cumulative" else summed / batch_size


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write a calibration as JSON with a fingerprint, atomically."""
    write_checked_json(path, calibration.to_dict())


def read_calibration(path: Path, epsilon: float, delta: float, sampling: Sampling) -> Calibration:
    """Read a file of `write_calibration`, and compare it with the setting that it must be for.

    Args:
        path: the file.
        epsilon: the target that the noise must be for; infinity is training without privacy.
        delta: of the (epsilon, delta) guarantee.
        sampling: that the noise must be for.

    Raises:
        CalibrationError: the file is missing, or is for another setting. The message contains
            the found and the expected value.
        DamagedFileError: another part of the file was edited or damaged.
    """
    expected = {
        "epsilon": epsilon,
        "delta": delta,
        "train_size": sampling.units,
        "batch_size": sampling.batch_size,
        "steps": sampling.steps,
    }
    try:
        content = read_json(path)
        noise = Calibration.from_dict(content)
        if wrong := differing(noise, expected):
            raise CalibrationError("; ".join(wrong))
    except FileNotFoundError:
        raise CalibrationError(f"{path}: no such calibration", (path,)) from None
    except (ValueError, TypeError) as error:
        damaged = "" if isinstance(error, CalibrationError) else "damaged: "
        raise CalibrationError(f"{path}: {damaged}{error}", (path,)) from None
    checked(path, content)
    return noise


def differing(noise: Calibration, expected: dict[str, Any]) -> list[str]:
    """Return a line with the found and the expected value for every field that differs."""
    return [
        f"{name}: found {getattr(noise, name)}, expected {value}"
        for name, value in expected.items()
        if getattr(noise, name) != value
    ]


# -- the tails of noise ------------------------------------------------------------------------


@dataclass(frozen=True)
class NoiseGenerator:
    """A generator of normal random numbers.

    Attributes:
        name: library, type and device.
        radius: the largest possible length of a pair of numbers.
        used: whether dpsweep trains with it.
    """

    name: str
    radius: float
    used: bool


def box_muller_radius(bits: float) -> float:
    """Return the largest length of a pair made from uniform numbers of at least 2^-bits."""
    return math.sqrt(2 * bits * math.log(2))


# numpy's ziggurat draws numbers above r as r - ln(U)/r and accepts x - r if it is at most
# sqrt(-2 ln U'), for U and U' of 53 bits. This bounds one number; the bound of a pair is at least as large.
_ZIGGURAT_START = 3.6541528853610088
_ZIGGURAT_RADIUS = _ZIGGURAT_START + box_muller_radius(53)

GENERATORS = (
    NoiseGenerator("numpy Philox, float64 (dpsweep, CPU)", _ZIGGURAT_RADIUS, used=True),
    # Two draws are added, so pairs of the sum are longer. Beyond the radius of one draw, their density
    # is below the normal density, so the bound for the sum must start there.
    NoiseGenerator("torch, float64, sum of two (dpsweep, CUDA)", box_muller_radius(54), used=True),
    NoiseGenerator("torch.randn, float32, CPU", box_muller_radius(24), used=False),
    NoiseGenerator("torch.randn, float32, CUDA", box_muller_radius(33), used=False),
)


def outside_probability(shift: float, radius: float) -> float:
    """Return the probability that two normal numbers with mean (shift, 0) lie outside a disc.

    Their squared length has a noncentral chi-square distribution with two degrees of freedom.

    Args:
        shift: distance of the mean from the centre, at least 0.
        radius: of the disc, at least 0.
    """
    from scipy.stats import ncx2  # noqa: PLC0415 (takes a second, and only this function needs it)

    return float(ncx2.sf(radius**2, 2, shift**2))


def tail_delta(noise_multiplier: float, sampling_rate: float, steps: int, radius: float) -> float:
    """Return the delta, at every epsilon, that is lost because noise stays inside a disc.

    >>> f"{tail_delta(0.44, 256 / 87002, steps=680, radius=box_muller_radius(24)):.1e}"
    '7.8e-04'

    The worst example has a gradient along one coordinate. A step with it has an outcome outside the
    disc with probability q p, where p is the probability for a normal pair with mean 1/sigma. At least
    one of T steps has such an outcome with probability ``1 - (1 - q p)^T``.

    Args:
        noise_multiplier: sigma.
        sampling_rate: q.
        steps: T.
        radius: of the generator.
    """
    outside = sampling_rate * outside_probability(1 / noise_multiplier, radius)
    return -math.expm1(steps * math.log1p(-outside)) if outside < 1 else 1.0


TOLERATED = 1e-3
"""The largest allowed cost of a generator, as a share of delta."""


def tail_costs(calibrations: Sequence[Calibration]) -> Iterator[str]:
    """Yield a headline, and one line with the cost of every generator.

    Raises:
        CalibrationError: at the end, if dpsweep uses a generator that costs more than `TOLERATED`.
    """
    yield f"{len(calibrations)} calibrations; delta that missing tails alone cost:"
    refused = []
    for generator in GENERATORS:
        shares = [
            tail_delta(each.noise_multiplier, each.sampling_rate, each.steps, generator.radius)
            / each.delta
            for each in calibrations
        ]
        above, broken = (sum(share > most for share in shares) for most in (TOLERATED, 1))
        yield (
            f"  {generator.name}, up to {generator.radius:.2f}: at most {max(shares, default=0):.2g} of "
            f"delta; above {TOLERATED:g} of it in {above}, above all of it in {broken}"
        )
        if generator.used and above:
            refused.append(generator.name)
    if refused:
        raise CalibrationError(
            f"{' and '.join(refused)}: found a cost of more than {TOLERATED:g} of delta; allowed: a larger "
            "noise multiplier (smaller epsilon, or fewer epochs)"
        )
