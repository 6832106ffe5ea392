"""Whether verdicts about tuning rules are right, and what a study must have to reach one."""

from typing import Any

from scipy.stats import beta

from benchmarks.tables.markdown import grid
from dpsweep.analysis.rules import RULES

Row = dict[str, Any]
_JOINT = "tune_jointly"
_ENOUGH = 0.93
"""Intervals of 95 % that contain the truth less often are counted."""
_LOWEST = 6
_TELLING = (
    "plateau below the norms",
    "harder problems are flatter",
    "harder problems are flat",
    "the plateau narrows with difficulty",
    "accuracies near a ceiling",
    "accuracies near chance",
    "effects of the paper's size",
    "the same, datasets very different",
)
"""Worlds in which measures of the effect differ; verdicts.json has all."""


def errors(result: Row) -> list[str]:
    """For each world: wrong verdicts, and how often intervals contain the gain without noise."""
    rows = []
    for world in dict.fromkeys(row["world"] for row in result["rows"]):
        mine = [row for row in result["rows"] if row["world"] == world]
        of_design = {row["design"]: float(row["wrong_studies"]) for row in mine}
        simulated = result["studies"] * len(of_design)
        wrong = round(sum(of_design.values()) * result["studies"])
        count = result["studies"]
        if not wrong:
            continue
        rows.append(
            [
                world,
                f"{wrong} of {simulated} (up to {100 * _at_most(wrong, simulated):.1f} %)",
                f"{100 * max(of_design.values()):.0f} %",
                _range([row for row in mine if row["rule"] != _JOINT], "covers_here", count),
                _range([row for row in mine if row["rule"] == _JOINT], "covers_here", count),
                _range(mine, "covers_elsewhere", count),
            ]
        )
    designs = len({row["design"] for row in result["rows"]})
    worlds = len({row["world"] for row in result["rows"]})
    simulated = result["studies"] * designs
    others = [row for row in result["rows"] if row["world"] not in {row[0] for row in rows}]
    rows.append(
        [
            f"each of the other {worlds - len(rows)}",
            f"0 of {simulated} (up to {100 * _at_most(0, simulated):.1f} %)",
            "0 %",
            _range(
                [row for row in others if row["rule"] != _JOINT], "covers_here", result["studies"]
            ),
            _range(
                [row for row in others if row["rule"] == _JOINT], "covers_here", result["studies"]
            ),
            _range(others, "covers_elsewhere", result["studies"]),
        ]
    )
    head = [
        "world", "studies with a wrong verdict", "of one study, at most", "coverage, this study",
        "coverage, joint tuning", "coverage, other datasets",
    ]  # fmt: skip
    return [
        *grid(head, rows),
        "",
        f"{designs} studies, each simulated {result['studies']} times in every world and for both "
        f'intervals; {result["cpu_seconds"] / 60:.0f} minutes of processor time. "Up to" is the upper end of '
        "the 95 % interval (Clopper-Pearson) of the probability, all studies together; of one study alone, "
        f"{result['studies']} simulations without a wrong verdict exclude only probabilities above "
        f"{100 * _at_most(0, result['studies']):.0f} %. The ranges of coverage are over all studies and "
        f"rules; in brackets, of how many the coverage is surely below {100 * _ENOUGH:.0f} %, and of how "
        "many it was measured.",
    ]


def lowest_coverage(result: Row) -> list[str]:
    """The intervals of "this study" that cover least, without joint tuning."""
    mine = [row for row in result["rows"] if row["rule"] != _JOINT and "covers_here" in row]
    low = sorted(
        (row for row in mine if _is_low(row, "covers_here", result["studies"])),
        key=lambda row: float(row["covers_here"]),
    )
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
        for row in low[:_LOWEST]
    ]
    return [
        *grid(["coverage", "world", "study", "rule", "true gain", "bias", "units"], rows),
        "",
        f"These are the lowest of {len(low)} intervals, of {len(mine)}, whose coverage is surely below "
        f"{100 * _ENOUGH:.0f} %.",
    ]


def _at_most(count: int, of: int) -> float:
    """The upper end of the 95 % interval of a probability (Clopper and Pearson)."""
    return 1.0 if count == of else float(beta.ppf(0.975, count + 1, of - count))


def _is_low(row: Row, key: str, count: int) -> bool:
    """Whether a coverage is surely below the goal."""
    return key in row and _at_most(round(row[key] * count), count) < _ENOUGH


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
    for world in _TELLING:
        mine = {row["effect"]: row for row in result["effects"] if row["world"] == world}
        found = [(100 * mine[name]["for"], 100 * mine[name]["against"]) for name in names]
        rows.append([world, *(f"{agrees:.0f} / {against:.0f} %" for agrees, against in found)])
    return grid(["world", *names], rows)


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
