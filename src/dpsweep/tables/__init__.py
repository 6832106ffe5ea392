"""Tables as LaTeX (booktabs), Markdown and CSV."""

from dpsweep.tables.text import write

__all__ = ["write"]
