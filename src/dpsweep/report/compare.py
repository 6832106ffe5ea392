"""Comparison of two studies: settings that differ, and best accuracies."""

from collections.abc import Hashable, Iterator
from typing import Any

import pandas as pd

from dpsweep.analysis.frames import present_trials
from dpsweep.base.units import markdown
from dpsweep.report.embed import choice, percent, values
from dpsweep.study import Study
from dpsweep.study.cells import number
from dpsweep.study.choice import choose
from dpsweep.study.paths import Paths
from dpsweep.tables.text import TextTable, signed

_COMPARED = {"privacy", "training", "datasets", "backbones", "methods", "sweeps"}
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
    studies = first[0], second[0]
    names = [study.title for study in studies]
    if names[0] == names[1]:
        names = [f"{study.title} ({study.results})" for study in studies]
    yield f"# {markdown(names[0])}, and {markdown(names[1])}\n"
    settings = pd.concat(map(_settings, studies), axis=1, keys=[0, 1]).fillna("–")
    differing = settings[settings[0] != settings[1]].reset_index().to_numpy().tolist()
    table = TextTable(["Setting", *names], differing, "lll")
    yield table.markdown("Settings that differ", True) if differing else "No setting differs.\n"
    ours, theirs = _best(*first), _best(*second)
    rows = [
        [
            problem,
            values([epsilon]),
            *_described(best),
            *_described(other),
            signed(100 * (other["centre"] - best["centre"]), 1),
        ]
        for (problem, epsilon), best in ours.items()
        if (other := theirs.get((problem, epsilon)))
    ]
    if not rows:
        yield "Both have trained no problem of the same name at the same ε."
        return
    of_both = [title for name in names for title in (name, f"{name}: B, C, learning rate")]
    table = TextTable(["Problem", "ε", *of_both, "Difference, points"], rows, "lrrrrrr")
    yield table.markdown("Best accuracies", heading=True)
    yield (
        "Accuracies are means over seeds, which also chose the settings; in brackets the lowest and highest. "
        "A difference within these ranges may be chance."
    )


def _settings(study: Study) -> "pd.Series[str]":
    """Return the settings of a study by their keys, such as ``training.select_on``."""

    def text(value: Any) -> str:
        listed = value if isinstance(value, list) else [value]
        return ", ".join(
            number(each) if isinstance(each, int | float) else str(each) for each in listed
        )

    content = study.model_dump(include=_COMPARED, exclude_none=True)
    (flat,) = pd.json_normalize(content).to_dict("records")
    return pd.Series({str(key): text(value) for key, value in flat.items()})


def _best(study: Study, paths: Paths) -> dict[tuple[str, float], dict[Hashable, Any]]:
    """Return the best choice of every problem and ε."""
    chosen = choose(present_trials(study, paths), by=["problem", "epsilon"]).dropna(
        subset=["centre"]
    )
    return {(best["problem"], best["epsilon"]): best for best in chosen.to_dict("records")}


def _described(best: dict[Hashable, Any]) -> list[str]:
    said = choice(best)
    spread = f"[{percent(best['minimum'])}, {percent(best['maximum'])}]"
    return [f"{said['Accuracy']} {spread}", f"{said['B']}, {said['C']}, {said['Learning rate']}"]
