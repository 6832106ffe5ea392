"""The rules of the paper, and what the studies say of each."""

from typing import Any

from benchmarks.tables.markdown import grid

Row = dict[str, Any]


def rules(studies: dict[str, Row]) -> list[str]:
    """A line for each rule and study: effect, interval, visible effect, verdict.

    Args:
        studies: the numbers of each study, by its name.
    """
    rows = []
    for rule in (row["rule"] for row in next(iter(studies.values()))["rules"]):
        for name, numbers in studies.items():
            (row,) = (each for each in numbers["rules"] if each["rule"] == rule)
            implication = row["implication"]
            rows.append(
                [
                    f"{row['condition']}: {implication[0].lower()}{implication[1:]}",
                    name,
                    _effect(row),
                    _short(row["threshold"]),
                    _short(row["smallest_visible_here"]),
                    f"{row['comparisons']} of {row['units']} ({row['in_favour']}, {row['against']})",
                    row["verdict"],
                ]
            )
    head = [
        "rule", "study", "gain [interval]", "must exceed", "visible", "comparisons of units (for, against)",
        "verdict",
    ]  # fmt: skip
    return grid(head, rows)


def _effect(row: Row) -> str:
    if row["effect"] is None:
        return "no comparison"
    text = f"{row['effect']:+.2f}"
    if row["lower_here"] is not None:
        text += f" [{row['lower_here']:+.2f}, {row['upper_here']:+.2f}]"
    return f"{text} {row['unit']}".replace("-", "−")


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
