"""The figures and tables of a study, resolved: with the names and values of the study.

A description becomes one target, or one for each member of a series. `dpsweep.study.bound` replaces roles
by names and words by values. A part with ``each`` becomes several parts, and `dpsweep.study.captions` makes
titles and captions. Targets that need roles or cells that the study lacks are listed with the reason.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from dpsweep.config.cells import number
from dpsweep.config.file import StudyFile
from dpsweep.config.messages import LONGEST_JOINED_NAME, NAME_PATTERN, unknown
from dpsweep.config.selections import NAMED, PARTS, Line, LinePanel
from dpsweep.study.bound import Bound, BoundSelection
from dpsweep.study.captions import CAPTION_WORDS, caption, facts, shared, tell_apart
from dpsweep.study.descriptions import Description, Series, descriptions
from dpsweep.study.targets import Figure, MistakeError, NotDrawnError, PrintedTable, Target

_SHADES: dict[int, tuple[str | None, ...]] = {2: ("easy", "hard"), 3: ("easy", "medium", "hard")}


@dataclass
class Targets:
    """Figures and tables of a study.

    Attributes:
        figures: figures by name; every selection has names and values.
        tables: tables by name.
        undrawn: by name of a target that is not drawn, the reason.
        mistakes: errors in the descriptions, each once.
    """

    figures: dict[str, Figure] = field(default_factory=dict)
    tables: dict[str, PrintedTable] = field(default_factory=dict)
    undrawn: dict[str, str] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)

    def reasons(self) -> dict[str, list[str]]:
        """Return the targets that are not drawn, by reason."""
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
        """Record why a member of a series is not drawn, or the mistake in its description."""
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


def resolve_targets(study: StudyFile) -> Targets:
    """Return the figures and tables of a study with checked sections."""
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
    """Return the name of a member of a series."""
    name = description.name
    for key, value in member.items():
        name = name.replace(f"{{{key}}}", value if isinstance(value, str) else number(value))
    return name


def _members(
    bound: Bound, description: Description, chosen: Mapping[str, str], axes: Series
) -> Iterator[dict[str, Any]]:
    """Return every combination of the values of a series along its axes; words get values first."""
    values = {}
    for axis, words in axes.items():
        found = set()
        for word in _listed(words):
            if not isinstance(word, str):
                found.add(word)
                continue
            # In a series, "all" means the values that all parts of the target share.
            shared_word = {axis: "common" if word == "all" else word}
            others = {key: _listed(each)[0] for key, each in axes.items()}
            target = description.target(**{**chosen, **others, **shared_word})
            selections = _selections(_Resolving(bound, description.where, target).parts())
            if not selections:
                raise MistakeError(
                    f"{description.where}: {axis}: found {word}; allowed: numbers (a {target.family} "
                    "selects no cells)"
                )
            bound.resolve(selections, series=True)
            found.update(selections[0].chosen[axis])
        values[axis] = sorted(found, key=lambda each: (isinstance(each, str), each))
    return _combinations(values)


@dataclass(frozen=True)
class _Part:
    """A part of a target: a panel, an entry of a table, or the cells of a figure.

    Attributes:
        where: the place of its description.
        content: as it is described.
        selections: those of its lines, or its own.
    """

    where: str
    content: Any
    selections: list[BoundSelection]

    @property
    def several(self) -> list[str]:
        """The axes with a part for each value."""
        return [axis for axis in getattr(self.content, "each", ()) if axis not in NAMED]


class _Resolving:
    """A target while its roles get names and its words get values.

    Args:
        bound: the study.
        where: the place of the description, for error messages.
        described: the figure or table with roles and words.

    Attributes:
        left_out: the reasons why parts of it are not drawn.
    """

    def __init__(self, bound: Bound, where: str, described: Target) -> None:
        self._bound, self._study = bound, bound.study
        self._where, self._described = where, described
        self.left_out: dict[str, None] = {}

    def target(self) -> Target:
        """Return the target with names, values, titles and a caption.

        Raises:
            NotDrawnError: the study lacks roles or cells.
            MistakeError: the description is wrong.
        """
        target = self._described
        parts = self._one_by_one(self.parts())
        selections = _selections(parts)
        self._bound.resolve(selections)
        target = target.with_study(self._bound, self._where, selections)
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
        """Return the parts of the target, one for each name of a role in ``each``.

        A part that needs roles or cells that the study lacks is left out.

        Raises:
            NotDrawnError: all are left out.
            MistakeError: a part is wrong.
        """
        found = list[_Part]()
        for index, part in enumerate(self._described.parts()):
            where = f"{self._where}: {self._described.part}"
            where += f"[{index}]" * isinstance(getattr(self._described, self._described.part), list)
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
        places = [(where, content)]
        if isinstance(content, LinePanel):
            places = [
                (f"{where}.lines[{index}]", line.within(content))
                for index, line in enumerate(content.lines)
            ]
        named = [self._bound.bind(place, each, self._described) for place, each in places]
        return _Part(where, content, named)

    def _one_by_one(self, parts: list[_Part]) -> list[_Part]:
        """Return the parts of the target, one for each value of an axis in ``each``."""
        if not any(part.several for part in parts):
            return parts
        self._bound.resolve(_selections(parts), series=True)
        final = []
        for part in parts:
            axes = {axis: part.selections[0].chosen[axis] for axis in part.several}
            if "epsilon" in axes and isinstance(self._described, Figure):
                axes["epsilon"] = axes["epsilon"][::-1]  # from the easy problem to the hard one
            copies = [part.content.model_copy(update=own) for own in _combinations(axes)]
            final += [
                self._part(part.where, each.model_copy(update={"each": ()})) for each in copies
            ]
        return final

    def _panels(self, parts: Sequence[_Part]) -> list[Any]:
        """Return the panels of a figure, each once and with a title; leave out panels of equal lines."""
        found: dict[Any, _Part] = {}
        for part in parts:
            cells = [(each.problem, *map(tuple, each.chosen.values())) for each in part.selections]
            if len(set(cells)) == len(cells):
                # Panels of the same cells with titles of their own are all drawn.
                found.setdefault((part.content.title, *cells), part)
            else:
                self.left_out[f"{part.selections[0].problem} has one value of what is compared"] = (
                    None
                )
        if not found:
            raise NotDrawnError("; ".join(self.left_out))
        said = [
            [facts(self._study, each.selection) for each in part.selections]
            for part in found.values()
        ]
        titles = tell_apart([shared(own) for own in said])
        panels = []
        for part, own, title in zip(found.values(), said, titles, strict=True):
            update: dict[str, Any] = {"title": part.content.title or title}
            selections = [each.selection for each in part.selections]
            panel: Any = selections[0]
            if isinstance(part.content, LinePanel):
                panel, labels = part.content, tell_apart(own)
                lines = cast(list[Line], selections)
                update["lines"] = _labelled(lines, labels, self._described.ordered)
            panels.append(panel.model_copy(update=update))
        return panels


def _labelled(lines: Sequence[Line], labels: Sequence[str], ordered: bool) -> list[Line]:
    """Return lines with labels and difficulties; those of the description stay."""
    shades = _SHADES.get(len(lines) if ordered else 0, (None,) * len(lines))
    return [
        line.model_copy(
            update={"label": line.label or label, "difficulty": line.difficulty or shade}
        )
        for line, label, shade in zip(lines, labels, shades, strict=True)
    ]


def _selections(parts: Sequence[_Part]) -> list[BoundSelection]:
    return [each for part in parts for each in part.selections]


def _listed(value: Any) -> list[Any]:
    return [value] if isinstance(value, str) or not isinstance(value, Sequence) else list(value)


def _combinations(series: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every combination of the values of a series: a value or a list of them by key."""
    for values in itertools.product(*map(_listed, series.values())):
        yield dict(zip(series, values, strict=True))
