"""Whether verdicts about tuning rules are right, and what a study must have to reach one."""

from typing import Any

from benchmarks.tables.markdown import grid
from dpsweep.analysis.rules import RULES

Row = dict[str, Any]
_JOINT = "tune_jointly"


def errors(result: Row) -> list[str]:
    """For each world: wrong verdicts, and how often intervals contain the gain without noise."""
    rows = []
    for world in dict.fromkeys(row["world"] for row in result["rows"]):
        mine = [row for row in result["rows"] if row["world"] == world]
        worst = max(mine, key=lambda row: float(row["wrong_studies"]))
        rows.append(
            [
                world,
                f"{100 * worst['wrong_studies']:.1f} %",
                _range([row for row in mine if row["rule"] != _JOINT], "covers_here"),
                _range([row for row in mine if row["rule"] == _JOINT], "covers_here"),
                _range(mine, "covers_elsewhere"),
            ]
        )
    designs = len({row["design"] for row in result["rows"]})
    head = [
        "world", "studies with a wrong verdict, at most", "coverage, this study",
        "coverage, joint tuning", "coverage, other datasets",
    ]  # fmt: skip
    return [
        *grid(head, rows),
        "",
        f"{designs} studies, each simulated {result['studies']} times in every world and for both "
        f"intervals; {result['cpu_seconds'] / 60:.0f} minutes of processor time. The ranges are over all "
        f"studies and rules; in brackets the share of them that is covered by 93 % at least. With "
        f"{result['studies']} simulations a coverage of 95 % is measured to within 4 points.",
    ]


def lowest_coverage(result: Row) -> list[str]:
    """The ten lowest coverages of "this study", without joint tuning, with the truth and the bias."""
    known = [row for row in result["rows"] if "covers_here" in row and row["rule"] != _JOINT]
    rows = [
        [
            f"{100 * row['covers_here']:.0f} %",
            row["world"],
            row["design"],
            _rule(row["rule"]),
            f"{row['truth_here']:+.3f}".replace("-", "−"),
            f"{row['bias_here']:+.3f}".replace("-", "−"),
            str(row["units"]),
        ]
        for row in sorted(known, key=lambda row: float(row["covers_here"]))[:10]
    ]
    return grid(["coverage", "world", "study", "rule", "true gain", "bias", "units"], rows)


def power(result: Row) -> list[str]:
    """Effects that each study can find, if they are as large as the paper's."""
    designs = list(dict.fromkeys(row["design"] for row in result["power"]))
    rows = []
    for key in dict.fromkeys(row["rule"] for row in result["power"]):
        mine = {row["design"]: row for row in result["power"] if row["rule"] == key}
        rows.append([_rule(key), *(_outlook(mine[design]) for design in designs)])
    return grid(["rule", *designs], rows)


def effects(result: Row) -> list[str]:
    """How often each effect finds something, where there is something and where there is not."""
    names = list(dict.fromkeys(row["effect"] for row in result["effects"]))
    rows = []
    for world in dict.fromkeys(row["world"] for row in result["effects"]):
        mine = {row["effect"]: row for row in result["effects"] if row["world"] == world}
        found = [(100 * mine[name]["for"], 100 * mine[name]["against"]) for name in names]
        rows.append([world, *(f"{agrees:.0f} / {against:.0f} %" for agrees, against in found)])
    return grid(["world", *names], rows)


def _range(rows: list[Row], key: str) -> str:
    values = [100 * row[key] for row in rows if key in row]
    if not values:
        return "–"
    enough = sum(value >= 93 for value in values)
    return f"{min(values):.0f} to {max(values):.0f} % ({enough} of {len(values)})"


def _rule(key: str) -> str:
    (rule,) = (rule for rule in RULES if rule.key == key)
    return f"{rule.condition}: {rule.implication}"


def _outlook(row: Row) -> str:
    visible = row["smallest_visible"]
    return "no verdict" if visible is None else f"{100 * row['power']:.0f} %, {visible:.2g}"
