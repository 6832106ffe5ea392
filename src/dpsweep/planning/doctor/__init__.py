"""``dpsweep doctor``: try every kind of job that a study sends to a cluster, and say what to change."""

from dpsweep.planning.doctor.examine import Examination, code, examine
from dpsweep.planning.doctor.probe import write_step

__all__ = ["Examination", "code", "examine", "write_step"]
