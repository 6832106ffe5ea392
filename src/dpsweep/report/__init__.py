"""The report: one self-contained HTML file with everything that a study found."""

from dpsweep.report.page import write

__all__ = ["write"]
