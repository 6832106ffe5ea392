"""A calibrated noise level, and what the paper derives from it. Standard library only."""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from dpsweep.base.errors import DpsweepError

# JSON does not tell 8.0 from 8.
_JSON_TYPES: dict[Any, tuple[type, ...]] = {float: (float, int), int: (int,), str: (str,)}


class CalibrationError(DpsweepError, ValueError):
    """A privacy target, mechanism or accountant that gives no trustworthy noise level.

    Raised instead of returning a noise multiplier that is not certified.
    """


@dataclass(frozen=True)
class Calibration:
    """A noise multiplier, the privacy that is certified for it, and what other accountants say.

    Attributes:
        epsilon: the target; infinity is training without privacy.
        delta: of the (epsilon, delta) guarantee, add/remove adjacency of single examples.
        train_size: N.
        batch_size: B, the expected batch size; N is the full batch.
        steps: T.
        noise_multiplier: sigma, the standard deviation of the noise over the sensitivity.
        certified_epsilon: proven upper bound on the epsilon of T steps, at most ``epsilon``.
        accountant: what proved it: "prv", "analytic gaussian" (full batch) or "none"
            (epsilon = infinity).
        pld_epsilon: epsilon by dp-accounting, which is independent of the certificate.
        opacus_epsilon: upper bound by Opacus' PRV accountant, None where it was not computed.
        opacus_note: why it is None, else empty.
    """

    epsilon: float
    delta: float
    train_size: int
    batch_size: int
    steps: int
    noise_multiplier: float
    certified_epsilon: float
    accountant: str
    pld_epsilon: float
    opacus_epsilon: float | None
    opacus_note: str

    @property
    def sampling_rate(self) -> float:
        """Probability that an example takes part in a step, q = B / N."""
        return self.batch_size / self.train_size

    @property
    def cumulative_noise(self) -> float:
        """The paper's sigma sqrt(T): standard deviation of the summed noise of all steps."""
        return cumulative_noise(self.noise_multiplier, self.steps)

    @property
    def effective_noise(self) -> float:
        """The paper's sigma / B: standard deviation of the noise in one averaged gradient."""
        return effective_noise(self.noise_multiplier, self.batch_size)

    @property
    def cumulative_effective_noise(self) -> float:
        """The paper's sigma sqrt(T) / B: of the noise summed over all averaged gradients."""
        return cumulative_effective_noise(self.noise_multiplier, self.steps, self.batch_size)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, the sampling rate and the derived quantities, ready for JSON."""
        return asdict(self) | {
            "sampling_rate": self.sampling_rate,
            "cumulative_noise": self.cumulative_noise,
            "effective_noise": self.effective_noise,
            "cumulative_effective_noise": self.cumulative_effective_noise,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Calibration":
        """Rebuild a calibration from `to_dict`; what is derived is derived anew.

        Raises:
            CalibrationError: a field is missing, or is not of its type.
        """
        missing = [field.name for field in fields(cls) if field.name not in values]
        if missing:
            raise CalibrationError(f"{', '.join(missing)} missing")
        for field in fields(cls):
            found = values[field.name]
            allowed = _JSON_TYPES.get(field.type)
            if allowed and (isinstance(found, bool) or not isinstance(found, allowed)):
                raise CalibrationError(
                    f"{field.name}: found {found!r}, expected {allowed[0].__name__}"
                )
        return cls(**{field.name: values[field.name] for field in fields(cls)})


def cumulative_noise(noise_multiplier: float, steps: int) -> float:
    """Return sigma sqrt(T), the paper's cumulative noise.

    >>> cumulative_noise(noise_multiplier=0.5, steps=16)
    2.0
    """
    return noise_multiplier * math.sqrt(steps)


def effective_noise(noise_multiplier: float, batch_size: int) -> float:
    """Return sigma / B, the paper's effective noise.

    >>> effective_noise(noise_multiplier=2.0, batch_size=64)
    0.03125
    """
    return noise_multiplier / batch_size


def cumulative_effective_noise(noise_multiplier: float, steps: int, batch_size: int) -> float:
    """Return sigma sqrt(T) / B, its cumulative version.

    >>> cumulative_effective_noise(noise_multiplier=2.0, steps=16, batch_size=64)
    0.125
    """
    return cumulative_noise(noise_multiplier, steps) / batch_size
