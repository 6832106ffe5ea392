"""Poisson sampling of units of privacy, on which sampler, accountants and certificates agree."""

from dataclasses import dataclass

from dpsweep.base.errors import DpsweepError
from dpsweep.base.numbers import integer


class CalibrationError(DpsweepError, ValueError):
    """A privacy target, mechanism or accountant that gives no certified noise multiplier."""


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
            number = integer(name, getattr(self, field), CalibrationError)
            if number < 1:
                raise CalibrationError(f"{name} = {number}: it must be at least 1")
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
