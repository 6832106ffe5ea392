"""The figures and tables of a study, from templates that speak of roles.

A template becomes one target, or one for each member of a series. Roles get names and words get
values (`dpsweep.study.words`), panels of a series are written out, and titles and captions are made
(`dpsweep.study.captions`). What the study has no roles or cells for is listed with the reason.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from dpsweep.study.captions import CAPTION_WORDS, caption, facts, shared, tell_apart
from dpsweep.study.cells import number
from dpsweep.study.clipping import clipping_kind
from dpsweep.study.config.study import StudyFile
from dpsweep.study.config.sweeps import Sweep
from dpsweep.study.messages import LONGEST_JOINED_NAME, NAME_PATTERN, unknown
from dpsweep.study.selections import NAMED, SEVERAL, Foreach, Line, LinePanel, Selection
from dpsweep.study.table_targets import (
    ComparedCells,
    ComparisonTable,
    OptimizerTable,
    Table,
    TuningImplications,
)
from dpsweep.study.targets import Figure, NoiseCurve, PerClass, Target
from dpsweep.study.words import Leaf, MistakeError, NotDrawnError, Words

_NUMERIC = ("epochs", "epsilon", "clipping_bound")
_SHADES: dict[int, tuple[str | None, ...]] = {2: ("easy", "hard"), 3: ("easy", "medium", "hard")}


@dataclass
class Targets:
    """Figures and tables of a study.

    Attributes:
        figures: figures by name; every selection has names and values.
        tables: tables by name.
        undrawn: what is not drawn, and why.
        mistakes: what is wrong in the templates, each once.
    """

    figures: dict[str, Figure] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    undrawn: dict[str, str] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)

    def reasons(self) -> dict[str, list[str]]:
        """Why something is not drawn, and what."""
        found: dict[str, list[str]] = {}
        for name, reason in self.undrawn.items():
            found.setdefault(reason, []).append(name)
        return found


def expand(study: StudyFile) -> Targets:
    """Write out the targets of a study, whose other sections have been checked."""
    expansion = _Expansion(study)
    found = expansion.found
    for name, figure in study.figure_templates.items():
        expansion.add(f"figures.{name}", name, figure, found.figures)
    for name, table in study.table_templates.items():
        expansion.add(f"tables.{name}", name, table, found.tables)
    return found


@dataclass(frozen=True)
class _Part:
    """A part of a target: a panel, the entries of a table, or the cells of a figure.

    Attributes:
        where: its key path.
        content: as the file has it.
        leaves: its selections: itself, or its lines.
        pending: axes of a series whose word stands for several values.
    """

    where: str
    content: Any
    leaves: list[Leaf]
    pending: tuple[str, ...] = ()

    @property
    def selections(self) -> list[Selection]:
        return [leaf.selection for leaf in self.leaves]


class _Expansion:
    """The targets of a study while they are written out."""

    def __init__(self, study: StudyFile) -> None:
        self._study = study
        self._words = Words(study)
        self.found = Targets()

    def add(self, where: str, name: str, template: Target, targets: dict[str, Any]) -> None:
        """Add the target of a template, or the members of a series."""
        for foreach in _listed(template.foreach):
            axes = _given(foreach, _NUMERIC)
            for roles in _combinations(_given(foreach, NAMED)):
                binding = {key: f"<{key}>" for key in axes}
                binding |= {part: f"<{role}>" for part, role in roles.items()}
                members: list[dict[str, Any]] = []
                with self._noting(name, binding):
                    for part, role in roles.items():
                        binding[part] = self._words.name(f"{where}.foreach", part, role)
                    member = _with(template, roles)
                    values = {axis: self._series(where, member, axis, axes[axis]) for axis in axes}
                    members = list(_combinations(values))
                for own in members:
                    bound = binding | own
                    with self._noting(name, bound):
                        self._add(where, self._name(name, bound), _with(member, own), targets)

    @contextmanager
    def _noting(self, name: str, binding: Mapping[str, Any]) -> Iterator[None]:
        """Note why a member of a series is not drawn, or what is wrong with its template."""
        try:
            yield
        except NotDrawnError as reason:
            self.found.undrawn[self._name(name, binding)] = str(reason)
        except MistakeError as mistake:
            if str(mistake) not in self.found.mistakes:
                self.found.mistakes.append(str(mistake))

    @staticmethod
    def _name(name: str, binding: Mapping[str, Any]) -> str:
        """The name of a member of a series."""
        for key, value in binding.items():
            text = value if isinstance(value, str) else number(value)
            name = name.replace(f"{{{key}}}", text)
        return name

    def _series(self, where: str, member: Target, axis: str, words: Any) -> list[Any]:
        """The values of a series of targets along an axis, which the file gives by values or words."""
        found = set()
        for word in _listed(words):
            if not isinstance(word, str):
                found.add(word)
                continue
            # The members share all their values.
            tried = _with(member, {axis: "common" if word == "all" else word})
            leaves = _leaves(_Member(self._study, self._words, where, tried).parts())
            if not leaves:
                raise MistakeError(
                    f"{where}.foreach.{axis}: found {word}; allowed: numbers (a {member.family} selects "
                    "no cells)"
                )
            self._words.resolve(leaves, series=True)
            found.update(leaves[0].chosen[axis])
        return sorted(found)

    def _add(self, where: str, name: str, template: Target, targets: dict[str, Any]) -> None:
        member = _Member(self._study, self._words, where, template)
        target = member.resolved()
        if not re.match(NAME_PATTERN, name):
            raise MistakeError(
                f"{where}: its name becomes {name}; allowed: letters, digits, '.', '_' and '-'"
            )
        if len(name) > LONGEST_JOINED_NAME:
            raise MistakeError(
                f"{where}: its name becomes one of {len(name)} characters; allowed: at most "
                f"{LONGEST_JOINED_NAME}"
            )
        if name in self.found.figures or name in self.found.tables:
            raise MistakeError(
                f"{where}: found a target of the name {name}; allowed: a name that is unique"
            )
        targets[name] = target
        if member.left_out:
            self.found.undrawn[f"parts of {name}"] = "; ".join(member.left_out)


class _Member:
    """A template that is no series, or is one member of it.

    Args:
        study: the study.
        words: its roles and words.
        where: key path of the template.
        template: figure or table, as the file has it.

    Attributes:
        left_out: the reasons why parts of it are not drawn.
    """

    def __init__(self, study: StudyFile, words: Words, where: str, template: Target) -> None:
        self._study, self._words = study, words
        self._where, self._template = where, template
        self.left_out: dict[str, None] = {}

    def resolved(self) -> Target:
        """The target: with names and values, titles and a caption.

        Raises:
            NotDrawnError: the study lacks roles or cells.
            MistakeError: something is wrong in the template.
        """
        target = self._template
        parts = self._along_grid(self.parts())
        leaves = _leaves(parts)
        self._words.resolve(leaves)
        match target:
            case TuningImplications():
                target = target.of(self._crossed_grids())
            case OptimizerTable():
                target = target.of(self._rivals(target.baseline))
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
                f"{self._where}.caption: {unknown(word.args[0], CAPTION_WORDS)} in braces"
            ) from None

    # -- parts -------------------------------------------------------------------------------

    def parts(self) -> list[_Part]:
        """The parts of the target, those of a series of names or of listed values written out.

        A part that the study has no roles or cells for is left out.

        Raises:
            NotDrawnError: none is left.
            MistakeError: something is wrong in a part.
        """
        template, found = self._template, list[_Part]()
        for index, part in enumerate(template.parts()):
            where = f"{self._where}.{template.part}"
            where += f"[{index}]" * (not isinstance(template, NoiseCurve))
            foreach, whole = getattr(part, "foreach", None), part.over(template.select)
            if foreach is not None:
                whole = whole.model_copy(update={"foreach": None})
            for roles in _combinations(_given(foreach, NAMED)):
                try:
                    found += self._copies(where, whole, roles, _given(foreach, _NUMERIC))
                except NotDrawnError as reason:
                    self.left_out[str(reason)] = None
        if self.left_out and not found:
            raise NotDrawnError("; ".join(self.left_out))
        return found

    def _copies(
        self, where: str, part: Any, roles: Mapping[str, str], axes: Mapping[str, Any]
    ) -> list[_Part]:
        """A part, once for each name and listed value; words of several values are pending."""
        names = {key: self._words.names(f"{where}.foreach", key, roles[key]) for key in roles}
        pending = tuple(axis for axis, word in axes.items() if word in SEVERAL)
        every = _combinations({**names, **axes})
        return [self._part(where, part.model_copy(update=own), pending) for own in every]

    def _part(self, where: str, content: Any, pending: tuple[str, ...] = ()) -> _Part:
        leaves = [(where, content)]
        if isinstance(content, LinePanel):
            leaves = [
                (f"{where}.lines[{index}]", line.over(content))
                for index, line in enumerate(content.lines)
            ]
        named = [self._words.leaf(place, leaf, self._template) for place, leaf in leaves]
        return _Part(where, content, named, pending)

    def _along_grid(self, parts: list[_Part]) -> list[_Part]:
        """The parts of the target, series along the grid written out too."""
        if not any(part.pending for part in parts):
            return parts
        self._words.resolve(_leaves(parts), series=True)
        final = []
        for part in parts:
            axes = {axis: part.leaves[0].chosen[axis] for axis in part.pending}
            if "epsilon" in axes and not isinstance(self._template, ComparisonTable):
                axes["epsilon"] = axes["epsilon"][::-1]  # from the easy problem to the hard one
            copies = [part.content.model_copy(update=own) for own in _combinations(axes)]
            final += [self._part(part.where, each) for each in copies]
        return final

    # -- what a family needs -----------------------------------------------------------------

    def _crossed_grids(self) -> list[Selection]:
        """The private grid of every sweep that crosses batch sizes with clipping bounds."""
        found = []
        for sweep in self._study.sweeps.values():
            axes = sweep.axes
            axes["epsilon"] = [epsilon for epsilon in sweep.epsilon if epsilon != float("inf")]
            bounds = [each for each in sweep.clipping_bounds if not isinstance(each, str)]
            if axes["epsilon"] and len(bounds) > 1 and len(sweep.batch_size) > 1:
                problem = {key: getattr(sweep, key) for key in NAMED}
                found.append(Selection.model_validate({**problem, **axes}))
        if not found:
            raise NotDrawnError("no sweep has two batch sizes and two clipping bounds")
        return found

    def _rivals(self, baseline: str) -> list[Selection]:
        """The private grids of each problem that the baseline trains too, where the baseline trains it."""
        if baseline not in self._study.every_optimizer:
            raise MistakeError(
                f"{self._where}.baseline: {unknown(baseline, self._study.every_optimizer)}"
            )
        grids: dict[tuple[str, ...], list[Sweep]] = {}
        for sweep in self._study.sweeps.values():
            rule = clipping_kind(sweep.clipping_bound)
            grids.setdefault((sweep.dataset, sweep.backbone, sweep.method, rule), []).append(sweep)
        found = []
        for sweeps in grids.values():
            places = {
                place: {each.problem.optimizer for each in sweeps if place in _settings(each)}
                for place in dict.fromkeys(each for sweep in sweeps for each in _settings(sweep))
            }
            for sweep in sweeps:
                for epsilon, epochs in _settings(sweep):
                    rivals = places[epsilon, epochs]
                    if baseline in rivals and len(rivals) > 1:
                        axes = sweep.axes | {"epsilon": [epsilon], "epochs": [epochs]}
                        names = {key: getattr(sweep, key) for key in NAMED}
                        found.append(Selection.model_validate({**names, **axes}))
        if not found:
            raise NotDrawnError(f"no sweep trains with another optimizer what {baseline} trains")
        return found

    def _with_baseline(self, target: PerClass, leaves: Sequence[Leaf]) -> PerClass:
        """The figure with the bound that others are compared with."""
        if "baseline" not in target.model_fields_set:
            return target.model_copy(update={"baseline": self._words.baseline(leaves)})
        for leaf in leaves:
            if not all(map(self._study.has, target.at_baseline(leaf.selection).cells())):
                raise MistakeError(
                    f"{self._where}.baseline: found {number(target.baseline)}; allowed: a clipping "
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
                update["lines"] = _labelled(lines, labels, self._template.ordered)
            panels.append(panel.model_copy(update=update))
        return panels


def _settings(sweep: Sweep) -> list[tuple[float, int]]:
    """The private (epsilon, epochs) of a sweep."""
    private = [epsilon for epsilon in sweep.epsilon if epsilon != float("inf")]
    return list(itertools.product(private, sweep.epochs))


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


def _given(foreach: Foreach | None, keys: Sequence[str]) -> dict[str, Any]:
    """The keys of a series that are given, of some."""
    return {key: value for key in keys if (value := getattr(foreach, key, None))}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _combinations(series: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every combination of the values of a series: a value or a list of them by key."""
    for values in itertools.product(*map(_listed, series.values())):
        yield dict(zip(series, values, strict=True))


def _with(template: Target, values: Mapping[str, Any]) -> Target:
    """The template of a member of a series."""
    update: dict[str, Any] = {"foreach": None}
    if values or template.foreach is not None:
        update["select"] = (template.select or Selection()).model_copy(update=dict(values))
    return template.model_copy(update=update)
