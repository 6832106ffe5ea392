"""The figures and tables of a study: their descriptions, with the study's own names and values.

A description becomes one target, or one for each member of a series. Roles get names and words get
values (`dpsweep.study.bound`), a part for each of several values is written out, and titles and captions are
made (`dpsweep.study.captions`). What the study has no roles or cells for is listed with the reason.
"""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from dpsweep.config.cells import number
from dpsweep.config.clipping import clipping_kind
from dpsweep.config.file import StudyFile
from dpsweep.config.messages import LONGEST_JOINED_NAME, NAME_PATTERN, unknown
from dpsweep.config.selections import NAMED, PARTS, Line, LinePanel, Selection
from dpsweep.config.sweeps import Sweep
from dpsweep.study.bound import Bound, Leaf, MistakeError, NotDrawnError
from dpsweep.study.captions import CAPTION_WORDS, caption, facts, shared, tell_apart
from dpsweep.study.descriptions import Description, Series, descriptions
from dpsweep.study.table_targets import (
    ComparedCells,
    ComparisonTable,
    OptimizerTable,
    PrintedTable,
    TuningImplications,
)
from dpsweep.study.targets import Figure, NoiseCurve, PerClass, Target

_SHADES: dict[int, tuple[str | None, ...]] = {2: ("easy", "hard"), 3: ("easy", "medium", "hard")}


@dataclass
class Targets:
    """Figures and tables of a study.

    Attributes:
        figures: figures by name; every selection has names and values.
        tables: tables by name.
        undrawn: what is not drawn, and why.
        mistakes: what is wrong in the descriptions, each once.
    """

    figures: dict[str, Figure] = field(default_factory=dict)
    tables: dict[str, PrintedTable] = field(default_factory=dict)
    undrawn: dict[str, str] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)

    def reasons(self) -> dict[str, list[str]]:
        """Why something is not drawn, and what."""
        found: dict[str, list[str]] = {}
        for name, reason in self.undrawn.items():
            found.setdefault(reason, []).append(name)
        return found

    def add(self, bound: Bound, description: Description) -> None:
        """Add the target of a description, or the members of its series."""
        for series in description.series:
            axes = {key: values for key, values in series.items() if key not in NAMED}
            roles = {key: values for key, values in series.items() if key in NAMED}
            for chosen in _combinations(roles):
                shown: dict[str, Any] = {key: f"<{key}>" for key in axes}
                shown |= {part: f"<{role}>" for part, role in chosen.items()}
                members: list[dict[str, Any]] = []
                with self._noting(description, shown):
                    for part, role in chosen.items():
                        shown[part] = bound.name(description.where, part, role)
                    members = list(_members(bound, description, chosen, axes))
                for own in members:
                    with self._noting(description, shown | own):
                        self._add(
                            bound, description, chosen | own, _named(description, shown | own)
                        )

    @contextmanager
    def _noting(self, description: Description, member: Mapping[str, Any]) -> Iterator[None]:
        """Note why a member of a series is not drawn, or what is wrong with its description."""
        try:
            yield
        except NotDrawnError as reason:
            self.undrawn[_named(description, member)] = str(reason)
        except MistakeError as mistake:
            if str(mistake) not in self.mistakes:
                self.mistakes.append(str(mistake))

    def _add(
        self, bound: Bound, description: Description, member: Mapping[str, Any], name: str
    ) -> None:
        resolving = _Resolving(bound, description.where, description.target(**member))
        target = resolving.target()
        if not re.fullmatch(NAME_PATTERN, name) or len(name) > LONGEST_JOINED_NAME:
            raise MistakeError(
                f"{description.where}: its name becomes {name}; allowed: at most {LONGEST_JOINED_NAME} "
                "letters, digits, '.', '_' and '-'"
            )
        if name in self.figures or name in self.tables:
            raise MistakeError(
                f"{description.where}: found a target of the name {name}; allowed: a name that is unique"
            )
        targets: dict[str, Any] = self.figures if isinstance(target, Figure) else self.tables
        targets[name] = target
        if resolving.left_out:
            self.undrawn[f"parts of {name}"] = "; ".join(resolving.left_out)


def drawn(study: StudyFile) -> Targets:
    """Return what is drawn of a study, whose sections have been checked."""
    found, bound = Targets(), Bound(study)
    try:
        described = descriptions(study.figure_files, paper=study.has_paper_figures)
    except MistakeError as mistake:
        found.mistakes.append(str(mistake))
        return found
    for description in described:
        found.add(bound, description)
    return found


def _named(description: Description, member: Mapping[str, Any]) -> str:
    """The name of a member of a series."""
    name = description.name
    for key, value in member.items():
        name = name.replace(f"{{{key}}}", value if isinstance(value, str) else number(value))
    return name


def _members(
    bound: Bound, description: Description, chosen: Mapping[str, str], axes: Series
) -> Iterator[dict[str, Any]]:
    """Every combination of the values of a series along its axes, which it names by values or words."""
    values = {}
    for axis, words in axes.items():
        found = set()
        for word in _listed(words):
            if not isinstance(word, str):
                found.add(word)
                continue
            # The members share all their values.
            shared_word = {axis: "common" if word == "all" else word}
            others = {key: _listed(each)[0] for key, each in axes.items()}
            target = description.target(**{**chosen, **others, **shared_word})
            leaves = _leaves(_Resolving(bound, description.where, target).parts())
            if not leaves:
                raise MistakeError(
                    f"{description.where}: {axis}: found {word}; allowed: numbers (a {target.family} "
                    "selects no cells)"
                )
            bound.resolve(leaves, series=True)
            found.update(leaves[0].chosen[axis])
        values[axis] = sorted(found, key=lambda each: (isinstance(each, str), each))
    return _combinations(values)


@dataclass(frozen=True)
class _Part:
    """A part of a target: a panel, an entry of a table, or the cells of a figure.

    Attributes:
        where: the place of its description.
        content: as it is described.
        leaves: its selections: itself, or its lines.
    """

    where: str
    content: Any
    leaves: list[Leaf]

    @property
    def selections(self) -> list[Selection]:
        return [leaf.selection for leaf in self.leaves]

    @property
    def several(self) -> list[str]:
        """The axes of which each value has a part of its own."""
        return [axis for axis in getattr(self.content, "each", ()) if axis not in NAMED]


class _Resolving:
    """A target whose roles get names, and whose words get values.

    Args:
        bound: the study.
        where: the place of the description, for mistakes.
        described: the figure or table with roles and words.

    Attributes:
        left_out: the reasons why parts of it are not drawn.
    """

    def __init__(self, bound: Bound, where: str, described: Target) -> None:
        self._bound, self._study = bound, bound.study
        self._where, self._described = where, described
        self.left_out: dict[str, None] = {}

    def target(self) -> Target:
        """The target: with names and values, titles and a caption.

        Raises:
            NotDrawnError: the study lacks roles or cells.
            MistakeError: something is wrong in the description.
        """
        target = self._described
        parts = self._one_by_one(self.parts())
        leaves = _leaves(parts)
        self._bound.resolve(leaves)
        match target:
            case TuningImplications():
                target = target.of(_crossed_grids(self._study))
            case OptimizerTable():
                target = target.of(_rivals(self._study, self._where, target.baseline))
            case NoiseCurve():
                target = target.model_copy(update={"cells": leaves[0].selection})
            case ComparisonTable():
                target = self._compared(target, leaves)
            case PerClass():
                target = self._with_baseline(target, leaves)
        if parts and target.part == "panels":
            target = target.model_copy(update={"panels": self._panels(parts)})
        try:
            return target.model_copy(update={"caption": caption(self._study, target)})
        except KeyError as word:
            raise MistakeError(
                f"{self._where}: caption: {unknown(word.args[0], CAPTION_WORDS)} in braces"
            ) from None

    # -- parts -------------------------------------------------------------------------------

    def parts(self) -> list[_Part]:
        """The parts of the target, those for each name of a role written out.

        A part that the study has no roles or cells for is left out.

        Raises:
            NotDrawnError: none is left.
            MistakeError: something is wrong in a part.
        """
        found = list[_Part]()
        for index, part in enumerate(self._described.parts()):
            where = f"{self._where}: {self._described.part}"
            where += f"[{index}]" * (not isinstance(self._described, NoiseCurve))
            keys = [key for key in getattr(part, "each", ()) if key in PARTS]
            try:
                names = {key: self._bound.names(where, key, getattr(part, key)) for key in keys}
                found += [
                    self._part(where, part.model_copy(update=own)) for own in _combinations(names)
                ]
            except NotDrawnError as reason:
                self.left_out[str(reason)] = None
        if self.left_out and not found:
            raise NotDrawnError("; ".join(self.left_out))
        return found

    def _part(self, where: str, content: Any) -> _Part:
        leaves = [(where, content)]
        if isinstance(content, LinePanel):
            leaves = [
                (f"{where}.lines[{index}]", line.within(content))
                for index, line in enumerate(content.lines)
            ]
        named = [self._bound.leaf(place, leaf, self._described) for place, leaf in leaves]
        return _Part(where, content, named)

    def _one_by_one(self, parts: list[_Part]) -> list[_Part]:
        """The parts of the target, those for each value of an axis written out too."""
        if not any(part.several for part in parts):
            return parts
        self._bound.resolve(_leaves(parts), series=True)
        final = []
        for part in parts:
            axes = {axis: part.leaves[0].chosen[axis] for axis in part.several}
            if "epsilon" in axes and not isinstance(self._described, ComparisonTable):
                axes["epsilon"] = axes["epsilon"][::-1]  # from the easy problem to the hard one
            copies = [part.content.model_copy(update=own) for own in _combinations(axes)]
            final += [
                self._part(part.where, each.model_copy(update={"each": ()})) for each in copies
            ]
        return final

    # -- what a family needs -----------------------------------------------------------------

    def _with_baseline(self, target: PerClass, leaves: Sequence[Leaf]) -> PerClass:
        """The figure with the bound that others are compared with."""
        if "baseline" not in target.model_fields_set:
            return target.model_copy(update={"baseline": self._bound.compared_bound(leaves)})
        for leaf in leaves:
            if not all(map(self._study.has, target.at_baseline(leaf.selection).cells())):
                raise MistakeError(
                    f"{self._where}: baseline: found {number(target.baseline)}; allowed: a clipping "
                    f"bound of {leaf.problem}"
                )
        return target

    def _compared(self, table: ComparisonTable, leaves: Sequence[Leaf]) -> ComparisonTable:
        """The table with its entries at their places, and the paper's numbers for them."""
        entries = []
        for entry in cast(list[ComparedCells], [leaf.selection for leaf in leaves]):
            said = facts(self._study, entry)
            epsilons = " ".join(f"{value:g}" for value in entry.values("epsilon"))
            row = [(said | {"epsilon": epsilons})[label] or "–" for label in table.rows]
            column = ", ".join(said[label] or "–" for label in table.columns)
            references = (each for each in self._study.reference_values if each.is_of(entry))
            entries.append(entry.placed(row, column, next(references, None)))
        for place, times in Counter((*entry.row, entry.column) for entry in entries).items():
            if times > 1:
                raise MistakeError(f"{self._where}: {', '.join(place)} appears twice in the table")
        return table.model_copy(update={"entries": entries})

    def _panels(self, parts: Sequence[_Part]) -> list[Any]:
        """The panels of a figure: each once, titled, and none that compares a thing with itself."""
        found: dict[Any, _Part] = {}
        for part in parts:
            cells = [(leaf.problem, *map(tuple, leaf.chosen.values())) for leaf in part.leaves]
            if len(set(cells)) == len(cells):
                # Who gives titles of their own wants them all.
                found.setdefault((part.content.title, *cells), part)
            else:
                self.left_out[f"{part.leaves[0].problem} has one value of what is compared"] = None
        if not found:
            raise NotDrawnError("; ".join(self.left_out))
        said = [[facts(self._study, each) for each in part.selections] for part in found.values()]
        titles = tell_apart([shared(own) for own in said])
        panels = []
        for part, own, title in zip(found.values(), said, titles, strict=True):
            update: dict[str, Any] = {"title": part.content.title or title}
            panel: Any = part.selections[0]
            if isinstance(part.content, LinePanel):
                panel, labels = part.content, tell_apart(own)
                lines = cast(list[Line], part.selections)
                update["lines"] = _labelled(lines, labels, self._described.ordered)
            panels.append(panel.model_copy(update=update))
        return panels


def _rivals(study: StudyFile, where: str, baseline: str) -> list[Selection]:
    """The private grids of each problem that the baseline trains too, where the baseline trains it."""
    if baseline not in study.every_optimizer:
        raise MistakeError(f"{where}: baseline: {unknown(baseline, study.every_optimizer)}")
    trained: dict[tuple[Any, ...], set[str]] = {}
    settings = [
        (sweep, epsilon, epochs)
        for sweep in study.sweeps.values()
        for epsilon, epochs in _settings(sweep)
    ]
    for sweep, *setting in settings:
        trained.setdefault((*_rivalry(sweep), *setting), set()).add(sweep.problem.optimizer)
    # The sweeps of a problem together, as they first appear.
    order = {
        key: place
        for place, key in enumerate(dict.fromkeys(_rivalry(each) for each, *_ in settings))
    }
    found = [
        _grid(sweep, epsilon=[epsilon], epochs=[epochs])
        for sweep, epsilon, epochs in sorted(settings, key=lambda each: order[_rivalry(each[0])])
        if baseline in (rivals := trained[*_rivalry(sweep), epsilon, epochs]) and len(rivals) > 1
    ]
    if not found:
        raise NotDrawnError(f"no sweep trains with another optimizer what {baseline} trains")
    return found


def _rivalry(sweep: Sweep) -> tuple[str, ...]:
    """Return what sweeps share whose optimizers are compared."""
    return (sweep.dataset, sweep.backbone, sweep.method, clipping_kind(sweep.clipping_bound))


def _settings(sweep: Sweep) -> list[tuple[float, int]]:
    """The private (epsilon, epochs) of a sweep."""
    return list(itertools.product(_private(sweep), sweep.epochs))


def _private(sweep: Sweep) -> list[float]:
    return [epsilon for epsilon in sweep.epsilon if not math.isinf(epsilon)]


def _labelled(lines: Sequence[Line], labels: Sequence[str], ordered: bool) -> list[Line]:
    """Lines with the labels and the difficulties that they do not say themselves."""
    shades = _SHADES.get(len(lines) if ordered else 0, (None,) * len(lines))
    return [
        line.model_copy(
            update={"label": line.label or label, "difficulty": line.difficulty or shade}
        )
        for line, label, shade in zip(lines, labels, shades, strict=True)
    ]


def _leaves(parts: Sequence[_Part]) -> list[Leaf]:
    return [leaf for part in parts for leaf in part.leaves]


def _listed(value: Any) -> list[Any]:
    return [value] if isinstance(value, str) or not isinstance(value, Sequence) else list(value)


def _combinations(series: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every combination of the values of a series: a value or a list of them by key."""
    for values in itertools.product(*map(_listed, series.values())):
        yield dict(zip(series, values, strict=True))


def _crossed_grids(study: StudyFile) -> list[Selection]:
    """The private grid of every sweep that crosses batch sizes with clipping bounds."""
    found = []
    for sweep in study.sweeps.values():
        bounds = [each for each in sweep.clipping_bounds if not isinstance(each, str)]
        private = _private(sweep)
        if private and len(bounds) > 1 and len(sweep.batch_size) > 1:
            found.append(_grid(sweep, epsilon=private))
    if not found:
        raise NotDrawnError("no sweep has two batch sizes and two clipping bounds")
    return found


def _grid(sweep: Sweep, **axes: list[Any]) -> Selection:
    """The grid of a sweep, some axes with the values that are given."""
    names = {key: getattr(sweep, key) for key in NAMED}
    return Selection.model_validate({**names, **sweep.axes, **axes})
