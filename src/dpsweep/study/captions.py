"""Titles, labels and captions, made from the drawn cells, so that they stay true when a grid is edited.

A caption may have these words in braces:

- ``dataset``, ``backbone``, ``method``: titles; ``optimizer``: DP-Adam or DP-SGD;
- ``epochs`` ("8 epochs"), ``seeds`` ("3 seeds", "3 to 5 seeds"), ``spread``: how their spread is drawn;
- ``tuned``: the tuned and the fixed axes of every point ("learning rate tuned (C = 1)");
- ``epsilon`` ("ε = 8"), ``clipping_bound`` ("C = 1"), ``batch_size`` ("1,024");
- ``baseline``: the clipping bound that others are compared with ("1"); ``centre``: mean or median;
- ``gamma``: that of AUTO-S; ``theory_seeds``: the seeds behind the theory ("seed 1", "seeds 1 to 3").
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dpsweep.base.units import count
from dpsweep.study.cells import PARTS, number
from dpsweep.study.clipping import RULES
from dpsweep.study.grid import MistakeError, Selection
from dpsweep.study.messages import unknown
from dpsweep.study.sweeps import Sweep
from dpsweep.study.targets import Target

if TYPE_CHECKING:
    from dpsweep.study.file import Study

# Facts that titles and labels can show, in their order.
_TOLD_APART = (*PARTS, "optimizer", "clipping", "epsilon", "clipping_bound", "epochs")
# Axis, its words in a caption where it is tuned, and its symbol where it has one value.
_TUNED = (("batch_size", "batch size", "B"), ("clipping_bound", "clipping bound", "C"))
_ALONE = ("dataset", "backbone", "epsilon")

FEWEST_FOR_A_BAND = 5
"""With fewer seeds, figures draw each seed as a point; see `dpsweep.figures.lines`."""

Facts = dict[str, str | None]


def listed(values: Iterable[Any]) -> str:
    """Return a list in words: a, b and c."""
    *most, last = [str(value) for value in values] or [""]
    return f"{', '.join(most)} and {last}" if most else last


def facts(study: "Study", selection: Selection) -> Facts:
    """Describe a selection in words; an axis with several values is None."""
    bounds = selection.values("clipping_bound")
    problem = selection.problem
    method = study.methods[problem.method]
    return {
        "dataset": study.datasets[problem.dataset].title,
        "backbone": study.backbones[problem.backbone].title,
        "method": method.title,
        "optimizer": study.optimizer_title(problem.optimizer, selection.values("epsilon")),
        "clipping": RULES[bounds[0]].title if bounds[0] in RULES else "Tuned",
        "epsilon": _single(selection.values("epsilon"), "ε = {}"),
        "clipping_bound": _single([each for each in bounds if not isinstance(each, str)], "C = {}"),
        "epochs": _single(selection.values("epochs"), "{} epochs"),
        "batch_size": _single(selection.values("batch_size"), "B = {}"),
        "rank": str(getattr(method, "rank", "–")),
    }


def shared(parts: Sequence[Facts]) -> Facts:
    """Return the facts that are the same for several selections; the others become None."""
    first, *others = parts
    return {
        name: text if all(each[name] == text for each in others) else None
        for name, text in first.items()
    }


def tell_apart(parts: Sequence[Facts]) -> list[str]:
    """Return a short text for each part of a figure: the facts that differ between the parts."""
    texts = list[str]()
    for names in (_TOLD_APART, (*_TOLD_APART, "batch_size")):
        differing = [name for name in names if len({each[name] for each in parts}) > 1]
        texts = [
            ", ".join(text for name in differing or _ALONE if (text := each[name]))
            for each in parts
        ]
        if len(set(texts)) == len(texts):
            break
    return texts


class _Words(dict[str, str]):
    """Texts by word; a caption with another word is a mistake."""

    def __missing__(self, word: str) -> str:
        raise MistakeError(f"caption: {unknown(word, self)} in braces")


def caption(study: "Study", target: Target) -> str:
    """Return the caption of a resolved target, with texts in place of the words in braces.

    Raises:
        MistakeError: a word is unknown.
    """
    text = target.caption.format_map(_words(study, target))
    return f"{text} {target.caption_end()}".rstrip()


def how_chosen(study: "Study", target: Target) -> list[str]:
    """Return the last sentences of a caption: how settings were chosen, if any were.

    The rule itself is in `dpsweep.study.choice`.
    """
    where = "the test set" if study.training.select_on == "test" else "held-out training examples"
    said = []
    if target.tunes:
        said.append(
            f"Tuned values have the highest mean accuracy over all seeds on {where}; learning rates are "
            "tuned with the first seed."
        )
    if target.shows_means:
        said.append(
            "These means are optimistic: the same seeds chose the settings. Column cross_fitted of the CSV "
            "has means over seeds that did not choose."
        )
    if any(target.marks):
        said.append(marks_sentence(study, target))
    if target.tuning_note:
        said.append(target.tuning_note)
    return said


def marks_sentence(study: "Study", target: Target) -> str:
    """Return the meaning of the marks of a figure (`dpsweep.analysis.statistics`)."""
    mark, group = target.marks
    if max((sweep.seeds for sweep in _sweeps(study, target.leaves())), default=0) < 2:
        return f"There is no {mark}: with one seed nothing tells the best of a {group} from luck."
    return f"Each {mark} is not significantly worse than the best of its {group} (95 %)."


def _single(values: Sequence[Any], text: str) -> str | None:
    return text.format(number(values[0])) if len(values) == 1 else None


def _words(study: "Study", target: Target) -> _Words:
    selections = target.leaves()
    said = [facts(study, each) for each in selections]
    sweeps = _sweeps(study, selections)
    seeds = [sweep.seeds for sweep in sweeps] or [0]
    measured = min(study.theory.seeds, max(1, *seeds))
    titles = {
        part: listed(dict.fromkeys(str(each[part]) for each in said))
        for part in (*PARTS, "optimizer")
    }
    axes = ("epsilon", "clipping_bound", "batch_size")
    return _Words(
        **titles,
        **{axis: _values(axis, selections) for axis in axes},
        epochs=_epochs(study, selections),
        seeds=_number_of_seeds(min(seeds), max(seeds)),
        spread=_spread(min(seeds), max(seeds)),
        tuned=_tuned(study, target, [sweep.learning_rates for sweep in sweeps]),
        gamma=number(study.training.automatic_clipping_gamma),
        theory_seeds=f"seeds 1 to {measured}" if measured > 1 else "seed 1",
        baseline=number(getattr(target, "baseline", "mean")),
        centre=str(getattr(target, "centre", "mean")),
    )


def _values(axis: str, selections: Sequence[Selection]) -> str:
    values = {value for each in selections for value in each.values(axis)}
    numbers = sorted(value for value in values if not isinstance(value, str))
    if axis == "batch_size":
        return listed([f"{value:,}" for value in numbers] + ["full"] * ("full" in values))
    symbol = {"epsilon": "ε", "clipping_bound": "C"}[axis]
    return f"{symbol} = {listed(map(number, numbers))}"


def _epochs(study: "Study", selections: Sequence[Selection]) -> str:
    datasets: dict[str, dict[str, None]] = {}
    for each in selections:
        title = study.datasets[each.problem.dataset].title
        epochs = each.values("epochs")
        text = count(epochs[0], "epoch") if len(epochs) == 1 else f"{listed(epochs)} epochs"
        datasets.setdefault(text, {})[title] = None
    if len(datasets) == 1:
        return next(iter(datasets))
    return ", ".join(f"{text} on {listed(titles)}" for text, titles in datasets.items())


def _number_of_seeds(fewest: int, most: int) -> str:
    return f"{fewest} to {most} seeds" if fewest < most else count(most, "seed")


def _spread(fewest: int, most: int) -> str:
    """Return how the spread over seeds is drawn."""
    some_have_more = fewest < most
    if fewest >= FEWEST_FOR_A_BAND:
        band = "the band is from the lowest to the highest seed"
        return band + ", and wider where there are more seeds" * some_have_more
    points = "small points are the seeds"
    return points + ", of which some lines have more than others" * some_have_more


def _sweeps(study: "Study", selections: Sequence[Selection]) -> list[Sweep]:
    """Return the sweeps with cells in some selections."""
    return [
        sweep
        for sweep in study.sweeps.values()
        if any(
            sweep.problem == each.problem
            and all(set(each.values(axis)) & set(values) for axis, values in sweep.axes.items())
            for each in selections
        )
    ]


def _tuned(study: "Study", target: Target, rates: Sequence[Sequence[float]]) -> str:
    """Return the axes that are tuned for every point, and those with one value.

    Args:
        study: the study.
        target: the target.
        rates: the learning rates of each sweep.
    """
    selections = target.leaves()
    tuned, fixed = [], []
    for axis, noun, symbol in _TUNED:
        # An axis that is drawn, or that must have one value, is not tuned.
        if axis in (*target.drawn_axes(), *target.single_axes()):
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
    if any(len(each) > 1 for each in rates):
        tuned.append("learning rate")
    else:
        fixed += [f"η = {number(rate)}" for rate in sorted({rate for (rate,) in rates})]
    once = listed(dict.fromkeys(fixed))
    if not tuned:
        return once
    return f"{listed(tuned)} tuned ({once})" if fixed else f"{listed(tuned)} tuned"
