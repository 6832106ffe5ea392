"""Targets from their parts and the cells of these: titles, labels and places in a table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from dpsweep.study.captions import facts, shared, tell_apart
from dpsweep.study.compared import ComparedCells
from dpsweep.study.config.study import StudyFile
from dpsweep.study.selections import AXES, Line, LinePanel, Panel, Selection
from dpsweep.study.table_targets import ComparisonTable
from dpsweep.study.targets import NoiseCurve
from dpsweep.study.words import MistakeError, NotDrawnError


@dataclass(frozen=True)
class Written:
    """A part of a target with its place in the file; ``pending`` axes have a word of several values."""

    where: str
    part: Panel | LinePanel | ComparedCells | Selection
    pending: tuple[str, ...] = ()

    def leaves(self) -> list[tuple[str, Selection]]:
        """Selections of the part: itself, or its lines."""
        if isinstance(self.part, LinePanel):
            return [
                (f"{self.where}.lines[{index}]", line.over(self.part))
                for index, line in enumerate(self.part.lines)
            ]
        return [(self.where, self.part)]


def assemble(
    study: StudyFile,
    where: str,
    target: Any,
    parts: Sequence[Written],
    selections: Sequence[Selection],
    left_out: dict[str, None],
) -> Any:
    """The target with its selections resolved and titled.

    Args:
        study: the study.
        where: key path of the target.
        target: the target.
        parts: its parts.
        selections: the leaves of all parts, resolved.
        left_out: gets the reasons why panels are left out.

    Raises:
        NotDrawnError: no panel is left.
        MistakeError: two entries of a table have one place.
    """
    if isinstance(target, NoiseCurve):
        return target.model_copy(update={"cells": selections[0]})
    if isinstance(target, ComparisonTable):
        entries = [_entry(study, target, each) for each in cast(list[ComparedCells], selections)]
        places = [(*entry.row, entry.column) for entry in entries]
        for place in places:
            if places.count(place) > 1:
                raise MistakeError(f"{where}: {', '.join(place)} appears twice in the table")
        return target.model_copy(update={"entries": entries})
    if not parts:
        return target
    panels = []
    different = _different(parts, iter(selections), left_out)
    about = [[facts(study, each) for each in own] for _, own in different]
    titles = tell_apart([shared(said) for said in about])
    for (part, own), said, title in zip(different, about, titles, strict=True):
        if isinstance(part.part, LinePanel):
            lines = _lines(target, cast(list[Line], own), tell_apart(said))
            panel: Any = part.part.model_copy(update={"lines": lines})
        else:
            panel = own[0]
        panels.append(panel.model_copy(update={"title": panel.title or title}))
    return target.model_copy(update={"panels": panels})


def _different(
    parts: Sequence[Written], selections: Iterator[Selection], left_out: dict[str, None]
) -> list[tuple[Written, list[Selection]]]:
    """Panels with their selections: each once, and none that compares a thing with itself."""
    found: dict[Any, tuple[Written, list[Selection]]] = {}
    for part in parts:
        own = [next(selections) for _ in part.leaves()]
        cells = [(each.problem, *(tuple(each.values(axis)) for axis in AXES)) for each in own]
        if len(set(cells)) == len(cells):
            # Who gives titles of their own wants them all.
            title = getattr(part.part, "title", "")
            found.setdefault((title, *cells), (part, own))
        else:
            left_out[f"{own[0].problem.name} has one value of what is compared"] = None
    if not found:
        raise NotDrawnError("; ".join(left_out))
    return list(found.values())


def _lines(target: Any, lines: list[Line], labels: list[str]) -> list[Line]:
    difficulties: dict[int, list[Any]] = {2: ["easy", "hard"], 3: ["easy", "medium", "hard"]}
    shades = difficulties.get(len(lines) if target.ordered else 0, [None] * len(lines))
    return [
        line.model_copy(
            update={"label": line.label or label, "difficulty": line.difficulty or shade}
        )
        for line, label, shade in zip(lines, labels, shades, strict=True)
    ]


def _entry(study: StudyFile, table: ComparisonTable, entry: ComparedCells) -> ComparedCells:
    said = facts(study, entry)
    row = {**said, "epsilon": " ".join(f"{value:g}" for value in entry.values("epsilon"))}
    reference = next((each for each in study.reference_values if each.is_of(entry)), None)
    return entry.placed(
        [row[label] or "–" for label in table.rows],
        ", ".join(said[label] or "–" for label in table.columns),
        reference,
    )
