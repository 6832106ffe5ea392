"""Accountants and noise calibration, with plain numbers as arguments and results.

Importing this package is fast because it imports no accountant. `calibrate` needs accountants, so it is in
`dpsweep.privacy.calibration`, and at the top of the library.
"""

from typing import TYPE_CHECKING

from dpsweep.base.lazy import submodules
from dpsweep.privacy.noise import Calibration, CalibrationError, Sampling

__all__ = ["Calibration", "CalibrationError", "Sampling"]

if not TYPE_CHECKING:
    __getattr__ = submodules(__name__, "trade_off")
