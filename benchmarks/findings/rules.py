"""The rules of the paper, and what this study says of each."""

from typing import Any

from benchmarks.findings.accuracies import table

Row = dict[str, Any]


def rules_section(numbers: Row, about: str) -> str:
    """Return a line for each rule (effect, interval, visible effect, verdict), and what it compares.

    Args:
        numbers: of a study.
        about: why nothing is said about other datasets.
    """
    rules = numbers["rules"]
    rows = [
        [
            f"{row['condition']}: {_begun_small(row['implication'])}",
            _effect(row),
            _short(row["threshold"]),
            _short(row["smallest_visible_here"]),
            f"{row['comparisons']} of {row['units']} ({row['in_favour']}, {row['against']})",
            row["verdict"],
        ]
        for row in rules
    ]
    head = [
        "rule", "gain [interval]", "must exceed", "visible", "comparisons of units (for, against)",
        "verdict",
    ]  # fmt: skip
    compared = "\n".join(
        f"- {row['condition']}: {_begun_small(row['implication'])}: {_compared(row, numbers)}"
        for row in rules
        if row["comparisons"]
    )
    subject = (
        '"Here" and the intervals'
        if any(row["verdict"].endswith("here") for row in rules)
        else "The intervals"
    )
    here = f"{subject} are about these datasets and networks; nothing is said about other datasets, {about}."
    return "\n\n".join(
        [
            table(head, rows),
            *_verdicts(rules),
            f"{_NOTE} {here}",
            f"What is compared:\n\n{compared}",
        ]
    )


_NOTE = (
    "Gains are positive where things go as the rule says. The units of an interval are problems or pairs "
    "of problems, and at least four are needed. All intervals hold together with 95 %. A rule is "
    "supported if its interval lies beyond the margin (0.1 points per halving, 0.5 points otherwise) and "
    'beyond the standard error of the reference, whichever is larger: "must exceed"; and if most units '
    'are beyond the margin. "Visible" is the smallest true gain that the study would have found with a '
    "probability of 80 %."
)


def _compared(rule: Row, numbers: Row) -> str:
    """The conditions of a rule's comparisons, those with the same values of epsilon together."""
    found: dict[str, list[str]] = {}
    for row in numbers["compared"]:
        if row["rule"] == rule["rule"]:
            names = [_titled(row[part], numbers["titles"]) for part in ("dataset", "backbone")]
            place = ", ".join([*names, f"{_against(row['epochs'])} epochs"])
            found.setdefault(place, []).append(_against(row["epsilon"]))
    places: dict[str, list[str]] = {}
    for place, epsilons in found.items():
        places.setdefault(", ".join(dict.fromkeys(epsilons)), []).append(place)
    return "; ".join(f"ε = {values}: {'; '.join(same)}" for values, same in places.items())


def _titled(names: str, titles: dict[str, str]) -> str:
    return " against ".join(titles[name] for name in names.split(", "))


def _against(values: str) -> str:
    """Values of a condition: the easiest, and those that are compared with it."""
    easiest, _, others = values.partition(", ")
    return f"{easiest} against {others}" if others else easiest


def _verdicts(rules: list[dict[str, Any]]) -> list[str]:
    """Which rules have which verdict, in a sentence for each verdict."""
    sentences = []
    for verdict in dict.fromkeys(row["verdict"] for row in rules):
        named = [
            f"{row['condition'].lower()}: {_begun_small(row['implication'])}"
            for row in rules
            if row["verdict"] == verdict
        ]
        sentences.append(f"**{verdict[0].upper()}{verdict[1:]}**: {'; '.join(named)}.")
    return sentences


def _effect(row: dict[str, Any]) -> str:
    if row["effect"] is None:
        return "no comparison"
    text = f"{row['effect']:+.2f}"
    if row["lower_here"] is not None:
        text += f" [{row['lower_here']:+.2f}, {row['upper_here']:+.2f}]"
    return f"{text} {row['unit']}".replace("-", "−")


def _short(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _begun_small(text: str) -> str:
    return f"{text[0].lower()}{text[1:]}"
