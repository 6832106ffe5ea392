"""Comparison of two studies: settings that differ, and best accuracies."""

from collections.abc import Iterator, Mapping
from typing import Any

from dpsweep.base.units import markdown
from dpsweep.report.embed import choice, percent, values
from dpsweep.report.trials import read_trials
from dpsweep.study import Study
from dpsweep.study.cells import number
from dpsweep.study.choice import choose
from dpsweep.study.paths import Paths
from dpsweep.tables.text import TextTable, signed

_COMPARED = ("privacy", "training", "datasets", "backbones", "methods", "sweeps")
"""Sections of a study that affect its numbers."""


def compare(first: tuple[Study, Paths], second: tuple[Study, Paths]) -> Iterator[str]:
    """Yield the parts of a Markdown page that compares two studies.

    Problems are matched by name.

    Args:
        first: a study and its files; it may be incomplete.
        second: the other study and its files.

    Raises:
        UnreadableResultsError: a trial file is damaged or lacks a column.
    """
    (study, _), (other, _) = first, second
    names = [study.title, other.title]
    if names[0] == names[1]:
        names = [f"{each.title} ({each.results})" for each in (study, other)]
    yield f"# {markdown(names[0])}, and {markdown(names[1])}"
    yield ""
    settings, others = _settings(study), _settings(other)
    differing = [
        [key, settings.get(key, "–"), others.get(key, "–")]
        for key in dict.fromkeys([*settings, *others])
        if settings.get(key) != others.get(key)
    ]
    table = TextTable(["Setting", *names], differing, "lll")
    yield (
        table.markdown("Settings that differ", heading=True)
        if differing
        else "No setting differs.\n"
    )
    rows = list(_accuracies(first, second))
    if not rows:
        yield "Both have trained no problem of the same name at the same ε."
        return
    of_both = [title for name in names for title in (name, f"{name}: B, C, learning rate")]
    columns = ["Problem", "ε", *of_both, "Difference, points"]
    best = TextTable(columns, rows, "l" + "r" * (len(columns) - 1))
    yield best.markdown("Best accuracies", heading=True)
    yield (
        "Accuracies are means over the seeds that chose, in brackets the lowest and highest. A difference "
        "within these ranges may be chance."
    )


def _settings(study: Study) -> dict[str, str]:
    """Return the settings of a study by their keys, such as ``training.select_on``."""

    def flat(key: str, content: Any) -> Iterator[tuple[str, str]]:
        if isinstance(content, Mapping):
            for name, value in content.items():
                yield from flat(f"{key}.{name}", value)
        else:
            listed = content if isinstance(content, list) else [content]
            numbers = (
                number(each) if isinstance(each, int | float) else str(each) for each in listed
            )
            yield key, ", ".join(numbers)

    dumped = study.model_dump(mode="python", include=set(_COMPARED), exclude_none=True)
    return dict(pair for name in _COMPARED for pair in flat(name, dumped[name]))


def _accuracies(first: tuple[Study, Paths], second: tuple[Study, Paths]) -> Iterator[list[str]]:
    ours, theirs = _best(*first), _best(*second)
    for key in (key for key in ours if key in theirs):
        (accuracy, described), (other, others_described) = ours[key], theirs[key]
        points = signed(100 * (other - accuracy), 1)
        yield [key[0], values([key[1]]), *described, *others_described, points]


def _best(study: Study, paths: Paths) -> dict[tuple[str, float], tuple[float, list[str]]]:
    """Return the best accuracy of every problem and ε, and the cells of its row."""
    trials = read_trials(study, paths)
    chosen = choose(trials, by=["problem", "epsilon"]).dropna(subset=["centre"])
    found = {}
    for best in chosen.to_dict("records"):
        said = choice(best)
        spread = f"[{percent(best['minimum'])}, {percent(best['maximum'])}]"
        found[best["problem"], best["epsilon"]] = (
            best["centre"],
            [
                f"{said['Accuracy']} {spread}",
                f"{said['B']}, {said['C']}, {said['Learning rate']}",
            ],
        )
    return found
