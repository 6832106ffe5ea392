"""The rules of the paper, and what this study says of each."""

from typing import Any

from benchmarks.findings.wording import table


def rules_table(rules: list[dict[str, Any]]) -> str:
    """A line for each rule: what was measured, its effect and its verdict."""
    rows = [
        [
            f"{row['condition']}: {_begun_small(row['implication'])}",
            row["effect_measured"],
            _effect(row),
            f"{row['comparisons']} ({row['in_favour']}, {row['against']})",
            row["verdict"],
        ]
        for row in rules
    ]
    head = ["rule", "measured", "effect [95 % interval]", "comparisons (for, against)", "verdict"]
    return table(head, rows)


def verdicts(rules: list[dict[str, Any]]) -> str:
    """Which rules have which verdict, in a sentence for each verdict."""
    sentences = []
    for verdict in dict.fromkeys(row["verdict"] for row in rules):
        named = [
            f"{row['condition'].lower()}: {_begun_small(row['implication'])}"
            for row in rules
            if row["verdict"] == verdict
        ]
        sentences.append(f"**{verdict[0].upper()}{verdict[1:]}**: {'; '.join(named)}.")
    return "\n\n".join(sentences)


def furthest_end(rules: list[dict[str, Any]]) -> str:
    """The end that is furthest from zero, of the intervals of effects on accuracy; in points."""
    ends = [
        abs(row[end])
        for row in unresolved(rules)
        for end in ("lower_here", "upper_here")
        if row["unit"] == "accuracy" and row[end] is not None
    ]
    return f"{100 * max(ends):.2f}"


def unresolved(rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rules for which the study is too small."""
    return [row for row in rules if row["verdict"] == "not resolved"]


def _effect(row: dict[str, Any]) -> str:
    if row["effect"] is None:
        return "no comparison"
    unit = row["unit"]
    text = f"{row['effect']:+.3g}"
    if row["lower_here"] is not None:
        text += f" [{row['lower_here']:+.3g}, {row['upper_here']:+.3g}]"
    return f"{text} {unit}".replace("-", "−")


def _begun_small(text: str) -> str:
    return f"{text[0].lower()}{text[1:]}"
