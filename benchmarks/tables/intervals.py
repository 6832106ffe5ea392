"""Tables of the errors and the power of verdicts about tuning rules."""

from typing import Any

from scipy.stats import beta

from benchmarks.tables.markdown import grid
from dpsweep.analysis.evidence import RULES

Row = dict[str, Any]
_JOINT = "tune_jointly"
_ENOUGH = 0.93
"""95 % intervals with a coverage below this value are counted."""


def errors(result: Row) -> list[str]:
    """Return, for each world, the wrong verdicts and the coverage of intervals."""
    studies = result["studies"]

    def line(title: str, rows: list[Row], shares: list[float]) -> list[str]:
        wrong, simulated = round(sum(shares) * studies), studies * len(shares)
        return [
            title,
            f"{wrong} of {simulated} (up to {100 * _at_most(wrong, simulated):.1f} %)",
            f"{100 * max(shares):.0f} %",
            _range([row for row in rows if row["rule"] != _JOINT], "covers_here", studies),
            _range([row for row in rows if row["rule"] == _JOINT], "covers_here", studies),
            _range(rows, "covers_elsewhere", studies),
        ]

    worlds: dict[str, list[Row]] = {}
    for row in result["rows"]:
        worlds.setdefault(row["world"], []).append(row)
    lines, others = [], []
    for world, rows in worlds.items():
        of_design = {row["design"]: float(row["wrong_studies"]) for row in rows}
        if any(of_design.values()):
            lines.append(line(world, rows, list(of_design.values())))
        else:
            others += rows
    designs = len({row["design"] for row in result["rows"]})
    lines.append(line(f"each of the other {len(worlds) - len(lines)}", others, [0.0] * designs))
    head = [
        "world", "studies with a wrong verdict", "of one study, at most", "coverage, this study",
        "coverage, joint tuning", "coverage, other datasets",
    ]  # fmt: skip
    return [
        *grid(head, lines),
        "",
        f"{designs} studies, each simulated {studies} times in every world and for both "
        f'intervals; {result["cpu_seconds"] / 60:.0f} minutes of processor time. "Up to" is the upper end of '
        "the 95 % interval (Clopper-Pearson) of the probability, all studies together; of one study alone, "
        f"{studies} simulations without a wrong verdict exclude only probabilities above "
        f"{100 * _at_most(0, studies):.0f} %. The ranges of coverage are over all studies and "
        f"rules; in brackets, of how many the coverage is surely below {100 * _ENOUGH:.0f} %, and of how "
        "many it was measured.",
    ]


def _at_most(count: int, of: int) -> float:
    """Return the upper end of the 95 % interval of a probability (Clopper and Pearson)."""
    return 1.0 if count == of else float(beta.ppf(0.975, count + 1, of - count))


def _is_low(row: Row, key: str, count: int) -> bool:
    """Tell whether a coverage is significantly below `_ENOUGH`."""
    return key in row and _at_most(round(row[key] * count), count) < _ENOUGH


def power(result: Row) -> list[str]:
    """Return the power of each study for effects of the paper's size, and the smallest visible effects."""
    designs = list(dict.fromkeys(row["design"] for row in result["power"]))
    rows = []
    for key in dict.fromkeys(row["rule"] for row in result["power"]):
        mine = {row["design"]: row for row in result["power"] if row["rule"] == key}
        rows.append([_rule(key), *(_outlook(mine[design]) for design in designs)])
    return grid(["rule", *designs], rows)


def _range(rows: list[Row], key: str, count: int) -> str:
    values = [100 * row[key] for row in rows if key in row]
    if not values:
        return "–"
    low = sum(_is_low(row, key, count) for row in rows)
    return f"{min(values):.0f} to {max(values):.0f} % ({low} of {len(values)})"


def _rule(key: str) -> str:
    (rule,) = (rule for rule in RULES if rule.key == key)
    return f"{rule.condition}: {rule.implication}"


def _outlook(row: Row) -> str:
    visible = row["smallest_visible"]
    return "no verdict" if visible is None else f"{100 * row['power']:.0f} %, {visible:.2g}"
