"""Tables of docs/peers.md: other libraries of private training beside dpsweep."""

from typing import Any

from benchmarks.tables.markdown import describe_environment, grid

Result = dict[str, Any]
RIGHT = 1e-4
"""Largest relative error of norms and sums that is rounding in float32."""


def layers(result: Result) -> list[str]:
    """Return what each library computes on each layer; layers with alike results share a sentence."""
    rows = result["rows"]
    libraries = [name for name in rows[0] if name != "layer"]
    others = [name for name in libraries if name != "dpsweep"]
    alike = [row["layer"] for row in rows if all(_is_right(row[each]) for each in libraries)]
    alone = [row["layer"] for row in rows if all("refused" in row[each] for each in others)]
    cells = [
        [row["layer"], *(_cell(row[each]) for each in libraries)]
        for row in rows
        if row["layer"] not in (*alike, *alone)
    ]
    right = {each: sum(_is_right(row[each]) for row in rows) for each in libraries}
    wrong = {
        each: sum("norms" in row[each] and not _is_right(row[each]) for row in rows)
        for each in libraries
    }
    counts = "; ".join(f"{each}: {right[each]} right, {wrong[each]} wrong" for each in libraries)
    return [
        f"Of {len(rows)} layers, {counts}; the others are refused.",
        f"All are right with {len(alike)} layers: {'; '.join(alike)}.",
        f"Opacus refuses {len(alone)} in each mode: {'; '.join(alone)}.",
        "",
        *grid(["layer", *libraries], cells, numbers=False),
        "",
        describe_environment(result["environment"]),
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
    contenders = [each for row in result["rows"] for each in row["contenders"].values()]
    spread = max(each["spread"] for each in contenders if "spread" in each)
    return [
        *grid(heads, rows),
        "",
        describe_environment(result["environment"]),
        f"The medians of the three processes differ by at most {spread:.0%}.",
    ]


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


def _cell(found: Result) -> str:
    if "refused" in found:
        return "refused"
    if _is_right(found):
        return f"{max(found['norms'], found['sum']):.0e}".replace("e-0", "e-")
    longest = f", {found['contribution']:.1f} C" if "contribution" in found else ""
    return f"**norms {found['norms']:.0%}, sum {found['sum']:.0%}{longest}**"
