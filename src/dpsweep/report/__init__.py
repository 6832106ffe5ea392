"""The pages of a study: the report of its results, and an interactive page of its cells.

Each is one self-contained HTML file.
"""

from dpsweep.report.explore import write as write_explore
from dpsweep.report.page import write

__all__ = ["write", "write_explore"]
