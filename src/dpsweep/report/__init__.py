"""What a reader opens: the report of everything that a study found, and a page to explore it with.

Each is one self-contained HTML file.
"""

from dpsweep.report.explore import write as write_explore
from dpsweep.report.page import write

__all__ = ["write", "write_explore"]
