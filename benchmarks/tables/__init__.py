"""The tables of CONTRIBUTING.md and docs/*.md, from benchmarks/results.

A table stands between two comments of a document and is replaced there; a result that has not
been measured yet becomes a line that says which command measures it.
"""

from benchmarks.tables.every import DOCUMENTS, TABLES, tables, write_tables
from benchmarks.tables.markdown import filled, start
from benchmarks.tables.reliability import slowest_tests
from benchmarks.tables.theory import theory_effects, theory_rules

__all__ = [
    "DOCUMENTS",
    "TABLES",
    "filled",
    "slowest_tests",
    "start",
    "tables",
    "theory_effects",
    "theory_rules",
    "write_tables",
]
