"""Tables as LaTeX (booktabs), Markdown and CSV."""

from dpsweep.tables.write import write

__all__ = ["write"]
