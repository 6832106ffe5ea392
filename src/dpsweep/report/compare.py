"""Two studies side by side: settings that differ, best accuracies, and the plateaus of C."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from dpsweep.figures.tables.text import TextTable, signed
from dpsweep.report.trials import is_private, read_trials
from dpsweep.report.wording import batch_text, bound_text, percent, values
from dpsweep.study import Cell, Study
from dpsweep.study.cells import number
from dpsweep.study.choice import choose
from dpsweep.study.paths import Paths

_COMPARED = ("privacy", "training", "datasets", "backbones", "methods", "sweeps")
"""Sections of a study that change its numbers."""


def compare(first: tuple[Study, Paths], second: tuple[Study, Paths]) -> Iterator[str]:
    """Yield the parts of a page in Markdown that compares two studies.

    Problems are the same if their names are. The plateau of C are the bounds whose mean accuracy, B and
    learning rate tuned, lies within the range of the seeds of the best one.

    Args:
        first: a study and its files; any part of it may be trained.
        second: the other one.

    Raises:
        UnreadableResultsError: a trial file is damaged or lacks a column.
    """
    (study, _), (other, _) = first, second
    names = [study.title, other.title]
    if names[0] == names[1]:
        names = [f"{each.title} ({each.results})" for each in (study, other)]
    yield f"# {names[0]}, and {names[1]}"
    yield ""
    differing = list(_differences(_settings(study), _settings(other)))
    settings = TextTable(["Setting", *names], differing, "lll")
    yield settings.markdown("## Settings that differ") if differing else "No setting differs.\n"
    rows = list(_accuracies(first, second))
    if not rows:
        yield "Both have trained no problem of the same name at the same ε."
        return
    columns = ["Problem", "ε", *_columns(names[0]), *_columns(names[1]), "Difference, points"]
    best = TextTable(columns, rows, "l" + "r" * (len(columns) - 1))
    yield best.markdown("## Best accuracies")
    yield (
        "Accuracies are means over the seeds that chose, in brackets the lowest and highest. A difference "
        "within these ranges may be chance."
    )


def _columns(name: str) -> list[str]:
    return [name, f"{name}: B, C, learning rate", f"{name}: plateau of C"]


def _settings(study: Study) -> dict[str, str]:
    """The settings of a study by their keys."""

    def flat(prefix: str, content: Any) -> Iterator[tuple[str, str]]:
        if isinstance(content, Mapping):
            for key, value in content.items():
                yield from flat(f"{prefix}.{key}", value)
        else:
            listed = content if isinstance(content, list) else [content]
            yield (
                prefix,
                ", ".join(
                    number(each) if isinstance(each, int | float) else str(each) for each in listed
                ),
            )

    dumped = study.model_dump(mode="python", include=set(_COMPARED), exclude_none=True)
    return dict(pair for name in _COMPARED for pair in flat(name, dumped[name]))


def _differences(first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[list[str]]:
    for key in dict.fromkeys([*first, *second]):
        if first.get(key) != second.get(key):
            yield [key, first.get(key, "–"), second.get(key, "–")]


def _accuracies(first: tuple[Study, Paths], second: tuple[Study, Paths]) -> Iterator[list[str]]:
    found = [_best(*each) for each in (first, second)]
    for key in (key for key in found[0] if key in found[1]):
        (ours, described), (theirs, described_too) = found[0][key], found[1][key]
        yield [
            key[0],
            values([key[1]]),
            *described,
            *described_too,
            signed(100 * (theirs - ours), 1),
        ]


def _best(study: Study, paths: Paths) -> dict[tuple[str, float], tuple[float, list[str]]]:
    """The best accuracy of every problem and ε, and its description."""
    trials = read_trials(study, paths)
    chosen = choose(trials, by=["problem", "epsilon"]).dropna(subset=["centre"])
    by_bound = choose(trials[is_private(trials)], by=["problem", "epsilon", "clipping_bound"])
    found = {}
    for _, best in chosen.iterrows():
        name, epsilon = str(best["problem"]), float(best["epsilon"])
        cell = Cell.parse(name, str(best["cell"]))
        lowest, highest = percent(float(best["minimum"])), percent(float(best["maximum"]))
        setting = ", ".join(
            [
                batch_text(cell.batch_size, int(best["batch_size"])),
                bound_text(cell.clipping_bound),
                number(float(best["learning_rate"])),
            ]
        )
        found[name, epsilon] = (
            float(best["centre"]),
            [
                f"{percent(float(best['centre']))} [{lowest}, {highest}]",
                setting,
                _plateau(by_bound, best),
            ],
        )
    return found


def _plateau(by_bound: pd.DataFrame, best: "pd.Series[Any]") -> str:
    same = by_bound[
        (by_bound["problem"] == best["problem"]) & (by_bound["epsilon"] == best["epsilon"])
    ].dropna(subset=["clipping_bound", "centre"])
    reached = same.loc[same["centre"] >= best["minimum"], "clipping_bound"]
    if reached.empty:
        return "–"
    if len(reached) == 1:
        return number(float(reached.iloc[0]))
    return f"{number(float(reached.min()))} to {number(float(reached.max()))}"
