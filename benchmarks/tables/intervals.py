"""What intervals contain, and what a study must have to see an effect."""

from typing import Any

from benchmarks.tables.markdown import grid


def coverage(result: dict[str, Any]) -> list[str]:
    """How often each candidate interval contains the truth, over all scenarios."""

    def span(rows: list[dict[str, Any]], key: str) -> str:
        values = [100 * row[key] for row in rows]
        return f"{min(values):.0f} to {max(values):.0f} %"

    rows = []
    for name in dict.fromkeys(row["interval"] for row in result["rows"]):
        of_interval = [row for row in result["rows"] if row["interval"] == name]
        for kind in dict.fromkeys(row["kind"] for row in of_interval):
            mine = [row for row in of_interval if row["kind"] == kind]
            power = sum(row["power"] for row in mine) / len(mine)
            spans = [span(mine, key) for key in ("covers_here", "covers_elsewhere")]
            rows.append([name, kind, *spans, f"{100 * power:.0f} %"])
    scenarios = len({row["scenario"] for row in result["rows"]})
    return [
        *grid(
            ["interval", "effect", "covers this study", "covers other datasets", "mean power"], rows
        ),
        "",
        f"{scenarios} scenarios of {result['studies']} studies each, nominal 95 %; "
        f"{result['cpu_seconds']:.0f} s of processor time.",
    ]


def power(result: dict[str, Any]) -> list[str]:
    """What a study must have to see that the best C grows."""
    rows = []
    for scenario in dict.fromkeys(row["scenario"] for row in result["rows"]):
        mine = {
            row["interval"]: row
            for row in result["rows"]
            if row["scenario"] == scenario and row["kind"] == "location"
        }
        here, elsewhere = mine["here: t over comparisons"], mine["elsewhere: t over datasets"]
        rows.append(
            [
                scenario,
                f"{elsewhere['truth_elsewhere']:.2f}",
                f"{elsewhere['bias']:+.3f}",
                *(
                    f"{100 * each[key]:.0f} %"
                    for each, key in (
                        (here, "covers_here"),
                        (elsewhere, "covers_elsewhere"),
                        (elsewhere, "covers_elsewhere_without_noise"),
                    )
                ),
                *(
                    f"{100 * each['power']:.0f} % ({100 * each['power_after_holm']:.0f} %)"
                    for each in (here, elsewhere)
                ),
            ]
        )
    head = [
        "scenario: the first, but ...",
        "growth of C, decades",
        "bias",
        "coverage, this study",
        "other datasets",
        "the same without noise",
        "power, this study",
        "other datasets",
    ]
    return grid(head, rows)
