"""What the privacy layer raises."""

from dpsweep.base.errors import DpsweepError


class CalibrationError(DpsweepError, ValueError):
    """A privacy target, mechanism or accountant that gives no trustworthy noise level.

    Raised instead of returning a noise multiplier that is not certified.
    """
