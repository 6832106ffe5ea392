"""Accountants and noise calibration: plain numbers in, plain numbers out.

A calibration is read without an accountant, which takes a second to import: so `calibrate` is in
`dpsweep.privacy.calibration`, and at the top of the library.
"""

from dpsweep.privacy.record import Calibration, CalibrationError

__all__ = ["Calibration", "CalibrationError"]
