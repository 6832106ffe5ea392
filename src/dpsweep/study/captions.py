"""Titles, labels and captions, made from what is drawn: an edited grid makes none of them false.

A caption may hold these in braces:

- ``dataset``, ``backbone``, ``method``: titles; ``optimizer``: DP-Adam or DP-SGD;
- ``epochs`` ("8 epochs"), ``seeds`` ("3 seeds", "3 to 5 seeds"), ``spread``: how their spread is drawn;
- ``tuned``: what was tuned for every point, and what was not ("learning rate tuned (C = 1)");
- ``epsilon`` ("ε = 8"), ``clipping_bound`` ("C = 1"), ``batch_size`` ("1,024");
- ``baseline``: the clipping bound that others are compared with ("1"); ``centre``: mean or median;
- ``gamma``: that of AUTO-S.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from dpsweep.base.units import count
from dpsweep.study.cells import number
from dpsweep.study.clipping import RULES
from dpsweep.study.config.study import StudyFile
from dpsweep.study.config.sweeps import Sweep
from dpsweep.study.selections import AXES, PARTS, Selection

# In the order of titles.
_TOLD_APART = (*PARTS, "optimizer", "clipping", "epsilon", "clipping_bound", "epochs")
# Axes, as a caption names those that are tuned, and those that are not.
_TUNED = (("batch_size", "batch size", "B"), ("clipping_bound", "clipping bound", "C"))
_ALONE = ("dataset", "backbone", "epsilon")
CAPTION_WORDS = (
    *PARTS, "optimizer", "epochs", "seeds", "spread", "tuned", "epsilon", "clipping_bound", "batch_size",
    "baseline", "centre", "gamma",
)  # fmt: skip

FEWEST_FOR_A_BAND = 5
"""With fewer seeds every one of them is a point of a figure; see `dpsweep.figures.lines`."""

Facts = dict[str, str | None]


def listed(values: Iterable[Any]) -> str:
    """A list in words: a, b and c."""
    *most, last = [str(value) for value in values] or [""]
    return f"{', '.join(most)} and {last}" if most else last


def facts(study: StudyFile, selection: Selection) -> Facts:
    """Describe a selection in words; None for an axis with several values."""
    bounds = selection.values("clipping_bound")
    problem = selection.problem
    method = study.methods[problem.method]
    return {
        "dataset": study.datasets[problem.dataset].title,
        "backbone": study.backbones[problem.backbone].title,
        "method": method.title,
        "optimizer": problem.optimizer_title(selection.values("epsilon")),
        "clipping": RULES[bounds[0]].title if bounds[0] in RULES else "Tuned",
        "epsilon": _single(selection.values("epsilon"), "ε = {:g}"),
        "clipping_bound": _single(
            [each for each in bounds if not isinstance(each, str)], "C = {:g}"
        ),
        "epochs": _single(selection.values("epochs"), "{} epochs"),
        "rank": str(getattr(method, "rank", "–")),
    }


def shared(parts: Sequence[Facts]) -> Facts:
    """Keep the facts that several selections share."""
    first, *others = parts
    return {
        name: text if all(each[name] == text for each in others) else None
        for name, text in first.items()
    }


def tell_apart(parts: Sequence[Facts]) -> list[str]:
    """A short text for each of some parts of a figure: what is not the same in all of them."""
    differing = [name for name in _TOLD_APART if len({each[name] for each in parts}) > 1]
    return [
        ", ".join(text for name in differing or _ALONE if (text := each[name])) for each in parts
    ]


def caption(
    study: StudyFile,
    text: str,
    selections: Sequence[Selection],
    own: Mapping[str, float | str],
    drawn: Collection[str] = (),
) -> str:
    """A caption with what is drawn in place of the words in braces.

    Args:
        study: the study.
        text: the caption, with words in braces.
        selections: what is drawn.
        own: what the target itself says: ``baseline``, ``centre``.
        drawn: axes of the grid that the target draws or has one value of, and so does not tune over.

    Raises:
        KeyError: a word is unknown; it is the exception's argument.
    """

    def said(word: re.Match[str]) -> str:
        if word[1] not in CAPTION_WORDS:
            raise KeyError(word[1])
        if word[1] == "tuned":
            return _tuned(study, selections, drawn)
        return _said(study, word[1], selections, own)

    return re.sub(r"\{([a-z_]+)\}", said, text)


def _single(values: Sequence[Any], text: str) -> str | None:
    return text.format(values[0]) if len(values) == 1 else None


def _said(
    study: StudyFile, name: str, selections: Sequence[Selection], own: Mapping[str, float | str]
) -> str:
    match name:
        case "dataset" | "backbone" | "method" | "optimizer":
            return listed(dict.fromkeys(str(facts(study, each)[name]) for each in selections))
        case "seeds" | "spread":
            said = _range_of_seeds if name == "seeds" else _spread
            return said(*_seeds(study, selections))
        case "epochs":
            return _epochs(study, selections)
        case "gamma":
            return number(study.training.automatic_clipping_gamma)
        case "baseline" | "centre":
            return number(own.get(name, "mean"))
    return _values(name, selections)


def _values(axis: str, selections: Sequence[Selection]) -> str:
    values = {value for each in selections for value in each.values(axis)}
    numbers = sorted(value for value in values if not isinstance(value, str))
    if axis == "batch_size":
        written = [f"{value:,}" for value in numbers] + ["full"] * ("full" in values)
        return listed(written)
    symbol = {"epsilon": "ε", "clipping_bound": "C"}[axis]
    return f"{symbol} = {listed(f'{value:g}' for value in numbers)}"


def _range_of_seeds(fewest: int, most: int) -> str:
    return f"{fewest} to {most} seeds" if fewest < most else count(most, "seed")


def _spread(fewest: int, most: int) -> str:
    if fewest >= FEWEST_FOR_A_BAND:
        band = "the band is from the lowest to the highest seed"
        return f"{band}, and wider where there are more seeds" if fewest < most else band
    points = "small points are the seeds"
    return f"{points}, of which some lines have more than others" if fewest < most else points


def _seeds(study: StudyFile, selections: Sequence[Selection]) -> tuple[int, int]:
    """The fewest and the most seeds of the sweeps that are drawn."""
    found = {sweep.seeds for sweep in _sweeps(study, selections)}
    return min(found, default=0), max(found, default=0)


def _sweeps(study: StudyFile, selections: Sequence[Selection]) -> Iterator[Sweep]:
    """The sweeps that are drawn."""
    for sweep in study.sweeps.values():
        grid: dict[str, Sequence[Any]] = {
            "epochs": sweep.epochs,
            "epsilon": sweep.epsilon,
            "clipping_bound": sweep.clipping_bounds,
            "batch_size": sweep.batch_size,
        }
        if any(
            sweep.problem == each.problem
            and all(set(each.values(axis)) & set(grid[axis]) for axis in AXES)
            for each in selections
        ):
            yield sweep


def _tuned(study: StudyFile, selections: Sequence[Selection], drawn: Collection[str]) -> str:
    """Say what is chosen for every point, and what has one value: "learning rate tuned (C = 1)"."""
    tuned, fixed = [], []
    for axis, noun, symbol in _TUNED:
        if axis in drawn:
            continue
        grids = [
            (study.datasets[each.problem.dataset].title, values)
            for each in selections
            if (values := [value for value in each.values(axis) if value not in RULES])
        ]
        several = any(len(values) > 1 for _, values in grids)
        tuned += [noun] * several
        fixed += [
            f"{symbol} = {number(values[0])}" + f" on {dataset}" * several
            for dataset, values in grids
            if len(values) == 1
        ]
    rates = [sweep.learning_rates for sweep in _sweeps(study, selections)]
    if any(len(each) > 1 for each in rates):
        tuned.append("learning rate")
    else:
        fixed += [f"η = {number(rate)}" for rate in sorted({rate for (rate,) in rates})]
    once = listed(dict.fromkeys(fixed))
    if not tuned:
        return once
    return f"{listed(tuned)} tuned ({once})" if fixed else f"{listed(tuned)} tuned"


def _epochs(study: StudyFile, selections: Sequence[Selection]) -> str:
    datasets: dict[str, dict[str, None]] = {}
    for each in selections:
        title = study.datasets[each.problem.dataset].title
        epochs = each.values("epochs")
        text = count(epochs[0], "epoch") if len(epochs) == 1 else f"{listed(epochs)} epochs"
        datasets.setdefault(text, {})[title] = None
    if len(datasets) == 1:
        return next(iter(datasets))
    return ", ".join(f"{text} on {listed(titles)}" for text, titles in datasets.items())
