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
