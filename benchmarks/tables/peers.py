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
    rows = [
        [row["layer"], *(_cell(row[each], sentences) for each in libraries)]
        for row in result["rows"]
    ]
    right = {each: sum(_is_right(row[each]) for row in result["rows"]) for each in libraries}
    wrong = {
        each: sum("norms" in row[each] and not _is_right(row[each]) for row in result["rows"])
        for each in libraries
    }
    counts = "; ".join(f"{each}: {right[each]} right, {wrong[each]} wrong" for each in libraries)
    return [
        f"Of {len(rows)} layers, {counts}; the others are refused.",
        "",
        *grid(["layer", *libraries], rows, numbers=False),
        "",
        describe_environment(result["environment"]),
        "",
        *(f"{number}. `{each}`" for number, each in enumerate(sentences, 1)),
    ]


def budgets(result: Result) -> list[str]:
    """Return what each library ran for a budget, and the epsilon of what it ran."""
    rows = []
    for row in result["rows"]:
        asked = "{examples:,}, {batch_size}, {epochs}, {epsilon:g}, {delta:g}".format_map(row)
        for name, ran in row["ran"].items():
            rows.append([asked, name, *_ran(ran, row["epsilon"])])
            asked = ""
    heads = ["N, B, epochs, ε, δ", "library", "rate", "steps", "mean batch", "divisor", "σ"]
    heads += ["ε reported", "ε by PLD", "ε by PRV"]
    return [*grid(heads, rows), "", describe_environment(result["environment"])]


def speed(result: Result) -> list[str]:
    """Return the seconds of a step, and the time as a multiple of dpsweep's."""
    rows = []
    for row in result["rows"]:
        ours = row["contenders"]["dpsweep"]["seconds"]
        for name, found in row["contenders"].items():
            times = f"{found['seconds'] / ours:.2f}x"
            rows.append([name, f"{found['seconds']:.3f}", times])
    heads = ["library", "seconds", "beside dpsweep"]
    return [*grid(heads, rows), "", describe_environment(result["environment"])]


def _ran(ran: Result, wanted: float) -> list[str]:
    if "refused" in ran:
        return [f"`{ran['refused']}`", *[""] * 7]

    # Both accountants give upper bounds, so the smaller one holds; 1e-5 is rounding.
    spent = min(ran["pld"], ran["second"])
    beyond = {"reported": ran["reported"], "pld": spent, "second": spent}

    def epsilon(key: str) -> str:
        over = beyond[key] > wanted * (1 + 1e-5)
        return f"**{ran[key]:.4f}**" if over else f"{ran[key]:.4f}"

    first = [f"{ran['rate']:.4g}", str(ran["steps"]), f"{ran['mean_batch']:.1f}"]
    last = [f"{ran['divisor']}", f"{ran['noise_multiplier']:.4f}"]
    return [*first, *last, *map(epsilon, ("reported", "pld", "second"))]


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
