"""Tables as LaTeX (booktabs), Markdown and CSV."""

from dpsweep.figures.tables.write import write

__all__ = ["write"]
