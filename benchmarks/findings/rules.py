"""The rules of the paper, and what this study says of each."""

from typing import Any

from benchmarks.findings.wording import table

WITHDRAWN = (
    "Not computed yet with the effects that [statistics.md](statistics.md) explains. The verdicts that "
    "stood here before were about the best C and B; below the gradient norms, where every C trains alike, "
    "those mean nothing. The tables below show the accuracies themselves."
)


def rules_section(rules: list[dict[str, Any]]) -> str:
    """Return a line for each rule: effect, interval, smallest visible effect and verdict."""
    if not rules:
        return WITHDRAWN
    rows = [
        [
            f"{row['condition']}: {_begun_small(row['implication'])}",
            _effect(row),
            f"{row['margin']:g}",
            _short(row["smallest_visible_here"]),
            f"{row['comparisons']} ({row['in_favour']}, {row['against']})",
            row["verdict"],
        ]
        for row in rules
    ]
    head = [
        "rule", "gain [interval]", "margin", "visible", "comparisons (for, against)", "verdict",
    ]  # fmt: skip
    return "\n\n".join([table(head, rows), *_verdicts(rules), _NOTE])


_NOTE = (
    "Gains are positive where things go as the rule says. All intervals hold together with 95 %. "
    '"Visible" is the smallest true gain that the study would have found with a probability of 80 %. '
    '"Here" is about these datasets and networks; nothing is said about other datasets, since two of the '
    "three share their images and count as one ([statistics.md](statistics.md))."
)


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
