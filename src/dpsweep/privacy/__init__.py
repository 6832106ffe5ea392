"""Accountants and noise calibration: plain numbers in, plain numbers out.

Names resolve on first use, because the accountants take a second to import and most readers of a
calibration need none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpsweep.privacy.errors import CalibrationError
from dpsweep.privacy.record import (
    Calibration,
    cumulative_effective_noise,
    cumulative_noise,
    effective_noise,
)

if TYPE_CHECKING:
    from dpsweep.privacy.calibration import calibrate, noise_multiplier
    from dpsweep.privacy.gaussian import (
        gaussian_delta,
        gaussian_epsilon,
        gaussian_noise_multiplier,
    )
    from dpsweep.privacy.opacus_accountant import opacus_epsilon
    from dpsweep.privacy.pld import pld_epsilon
    from dpsweep.privacy.prv import prv_epsilon

__all__ = [
    "Calibration",
    "CalibrationError",
    "calibrate",
    "cumulative_effective_noise",
    "cumulative_noise",
    "effective_noise",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_noise_multiplier",
    "noise_multiplier",
    "opacus_epsilon",
    "pld_epsilon",
    "prv_epsilon",
]

_MODULES = {
    "calibrate": "calibration",
    "gaussian_delta": "gaussian",
    "gaussian_epsilon": "gaussian",
    "gaussian_noise_multiplier": "gaussian",
    "noise_multiplier": "calibration",
    "opacus_epsilon": "opacus_accountant",
    "pld_epsilon": "pld",
    "prv_epsilon": "prv",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
