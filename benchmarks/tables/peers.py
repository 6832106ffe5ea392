"""Tables of docs/peers.md: other libraries of private training beside dpsweep."""

from typing import Any

from benchmarks.tables.markdown import describe_environment, grid

Result = dict[str, Any]
RIGHT = 1e-4
"""Largest relative error of norms and sums that is rounding in float32."""


def layers(result: Result) -> list[str]:
    """Return what each library computes on each layer, and the sentences of refusal."""
    libraries = [name for name in result["rows"][0] if name != "layer"]
    sentences: list[str] = []
    alike = [
        row["layer"] for row in result["rows"] if all(_is_right(row[each]) for each in libraries)
    ]
    rows = [
        [row["layer"], *(_cell(row[each], sentences) for each in libraries)]
        for row in result["rows"]
        if row["layer"] not in alike
    ]
    right = {each: sum(_is_right(row[each]) for row in result["rows"]) for each in libraries}
    wrong = {
        each: sum("norms" in row[each] and not _is_right(row[each]) for row in result["rows"])
        for each in libraries
    }
    counts = "; ".join(f"{each}: {right[each]} right, {wrong[each]} wrong" for each in libraries)
    return [
        f"Of {len(result['rows'])} layers, {counts}; the others are refused.",
        f"All are right with {len(alike)} layers: {'; '.join(alike)}.",
        "",
        *grid(["layer", *libraries], rows, numbers=False),
        "",
        describe_environment(result["environment"]),
        "",
        *(f"{number}. `{each}`" for number, each in enumerate(sentences, 1)),
    ]


def budgets(result: Result) -> list[str]:
    """Return what each library ran for a budget, and the epsilon of what it ran."""
    names = list(result["rows"][0]["ran"])
    rows = []
    for row in result["rows"]:
        asked = "{examples:,}, {batch_size}, {epochs}, {epsilon:g}, {delta:g}".format_map(row)
        ran = [_ran(row["ran"][name], row["epsilon"]) for name in names]
        rows.append([asked, *map(", ".join, zip(*ran, strict=True))])
    heads = ["N, B, epochs, ε, δ", "rate", "steps", "divisor", "σ", "ε reported", "ε of what ran"]
    return [
        f"Numbers of {', '.join(names)}, in this order.",
        "",
        *grid(heads, rows),
        "",
        describe_environment(result["environment"]),
    ]


def speed(result: Result) -> list[str]:
    """Return seconds and memory of a step of dpsweep, and of the others as multiples of these."""
    names = list(dict.fromkeys(name for row in result["rows"] for name in row["contenders"]))
    others = [name for name in names if name != "dpsweep"]
    rows = []
    for row in result["rows"]:
        ours = row["contenders"]["dpsweep"]
        cells = [f"{ours['seconds']:.3g} s, {ours['megabytes']:.0f} MB"]
        for name in others:
            found = row["contenders"].get(name)
            ratios = (
                [f"{found[key] / ours[key]:.2f}x" for key in ("seconds", "megabytes")]
                if found
                else []
            )
            cells.append(", ".join(ratios))
        rows.append([f"{row['title']} ({row['batch']})", *cells])
    heads = ["network, what trains (batch)", "dpsweep", *others]
    return [*grid(heads, rows), "", describe_environment(result["environment"])]


def _ran(ran: Result, wanted: float) -> list[str]:
    """Return rate, steps, divisor, noise, and epsilon as reported and as computed from these."""
    if "refused" in ran:
        return [f"`{ran['refused']}`", *["–"] * 5]
    # Both accountants give upper bounds, so the smaller one holds; 1e-5 is rounding.
    epsilons = [
        f"**{each:.4f}**" if each > wanted * (1 + 1e-5) else f"{each:.4f}"
        for each in (ran["reported"], min(ran["pld"], ran["second"]))
    ]
    run = f"{ran['rate']:.4g}", f"{ran['steps']}", f"{ran['divisor']}"
    return [*run, f"{ran['noise_multiplier']:.4f}", *epsilons]


def _is_right(found: Result) -> bool:
    return (
        "contribution" in found
        and max(found["norms"], found["sum"], found["contribution"] - 1) < RIGHT
    )


def _cell(found: Result, sentences: list[str]) -> str:
    sentence = found.get("refused") or found.get("with_another_batch")
    if sentence and sentence not in sentences:
        sentences.append(sentence)
    number = f" ({sentences.index(sentence) + 1})" if sentence else ""
    if "refused" in found:
        return f"refused{number}"
    if _is_right(found):
        return f"{max(found['norms'], found['sum']):.0e}".replace("e-0", "e-")
    longest = f", {found['contribution']:.1f} C" if "contribution" in found else number
    return f"**norms {found['norms']:.0%}, sum {found['sum']:.0%}{longest}**"
