"""How numbers and tables are written in the page."""

from collections.abc import Sequence

from benchmarks.tables.markdown import line


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join(map(line, [head, ["---", *["---:"] * (len(head) - 1)], *rows]))


def share(value: float | None) -> str:
    """An accuracy, as a percentage with one digit."""
    return "" if value is None else f"{100 * value:.1f}"


def points(value: float) -> str:
    """A difference of accuracies, in percentage points."""
    return f"{100 * value:+.1f}".replace("-", "−")
