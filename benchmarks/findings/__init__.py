"""The page docs/findings.md, its figures and its numbers."""

from benchmarks.findings.document import IMAGES, PAGE, page, write_page
from benchmarks.findings.numbers import NUMBERS, TRIALS, collect, digest

__all__ = [
    "IMAGES",
    "NUMBERS",
    "PAGE",
    "TRIALS",
    "collect",
    "digest",
    "page",
    "write_page",
]
