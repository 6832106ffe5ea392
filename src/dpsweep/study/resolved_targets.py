"""The figures and tables of a study: those of its functions, with titles and captions.

Targets that need roles or cells that the study lacks are listed with the reason.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dpsweep.config.cells import NAMED, number
from dpsweep.config.messages import LONGEST_JOINED_NAME, NAME_PATTERN, shorten, unknown
from dpsweep.study.captions import CAPTION_WORDS, caption, facts, shared, tell_apart
from dpsweep.study.descriptions import Description, descriptions
from dpsweep.study.grid import Grids, Line, LinePanel, MistakeError, NotDrawnError, Selection
from dpsweep.study.targets import Figure, PrintedTable, Target, named_rule

if TYPE_CHECKING:
    from dpsweep.study.study import Study

_SHADES: dict[int, tuple[str | None, ...]] = {2: ("easy", "hard"), 3: ("easy", "medium", "hard")}


@dataclass
class Targets:
    """Figures and tables of a study.

    Attributes:
        figures: figures by name.
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

    def add(self, study: "Study", description: Description) -> None:
        """Add the targets of a description."""
        for roles in description.members():
            grids, names = Grids(study), {part: f"<{role}>" for part, role in roles.items()}
            with self._noting(description, names):
                for part, role in roles.items():
                    names[part] = grids.name(part, role)
                for target in description.targets(grids, roles):
                    self._add(study, description, names, target)
                    if grids.left_out:
                        name = _name(description, names, target)
                        self.undrawn[f"parts of {name}"] = "; ".join(grids.left_out)

    @contextmanager
    def _noting(self, description: Description, names: Mapping[str, str]) -> Iterator[None]:
        """Record why a target is not drawn, or the mistake in its description."""
        try:
            yield
        except NotDrawnError as reason:
            self.undrawn[_name(description, names)] = str(reason)
        except MistakeError as mistake:
            said = str(mistake)
            said = said if description.file.name in said else f"{description.where}: {said}"
            if said not in self.mistakes:
                self.mistakes.append(said)

    def _add(
        self, study: "Study", description: Description, names: Mapping[str, str], target: Target
    ) -> None:
        for place, leaf in _places(target):
            if target.needs_bounds and (rule := named_rule(leaf)):
                raise MistakeError(
                    f"{place}.clipping_bound: found {rule}; allowed: numbers (a {target.family} figure "
                    "draws C)"
                )
            for axis in target.single_axes():
                if len(values := leaf.values(axis)) > 1:
                    raise MistakeError(
                        f"{place}.{axis}: found {shorten(map(number, values))}; allowed: one of them (a "
                        f"{target.family} draws one {axis} here)"
                    )
        target = _finished(study, target.with_study(study))
        name = _name(description, names, target)
        if not re.fullmatch(NAME_PATTERN, name) or len(name) > LONGEST_JOINED_NAME:
            raise MistakeError(
                f"its name becomes {name}; allowed: at most {LONGEST_JOINED_NAME} "
                "letters, digits, '.', '_' and '-'"
            )
        if name in self.figures or name in self.tables:
            raise MistakeError(f"found a target of the name {name}; allowed: a name that is unique")
        targets: dict[str, Any] = self.figures if isinstance(target, Figure) else self.tables
        targets[name] = target


def resolve_targets(study: "Study") -> Targets:
    """Return the figures and tables of a study with checked sections."""
    found = Targets()
    try:
        for description in descriptions(study.figure_files, paper=study.has_paper_figures):
            found.add(study, description)
    except MistakeError as mistake:
        found.mistakes.append(str(mistake))
    return found


def _name(description: Description, names: Mapping[str, str], target: Target | None = None) -> str:
    """Return the name of a target: keys in braces are replaced by its roles' names and its values."""
    first = next(iter(target.leaves()), None) if target else None

    def text(key: str) -> str:
        if key in NAMED:
            return str(names.get(key) or getattr(first, key, f"<{key}>"))
        return number(first.values(key)[0]) if first else f"<{key}>"

    return re.sub(r"\{(\w+)\}", lambda key: text(key[1]), description.name)


def _places(target: Target) -> Iterator[tuple[str, Selection]]:
    """Yield every selection of a target with its place."""
    for index, part in enumerate(target.parts()):
        place = f"{target.part}[{index}]" if target.part != "cells" else "cells"
        if isinstance(part, LinePanel):
            yield from ((f"{place}.lines[{i}]", line) for i, line in enumerate(part.lines))
        else:
            yield place, part


def _finished(study: "Study", target: Target) -> Target:
    """Return a target with titles and a caption."""
    if target.part == "panels" and target.parts():
        target = target.model_copy(update={"panels": _titled(study, target)})
    try:
        return target.model_copy(update={"caption": caption(study, target)})
    except KeyError as word:
        raise MistakeError(f"caption: {unknown(word.args[0], CAPTION_WORDS)} in braces") from None


def _titled(study: "Study", target: Target) -> list[Any]:
    """Return the panels of a figure, each once and with a title."""
    found: dict[Any, Any] = {}
    for panel in target.parts():
        # Panels of the same cells with titles of their own are all drawn.
        cells = [each.model_dump_json(exclude={"label", "difficulty"}) for each in _leaves(panel)]
        found.setdefault((panel.title, *cells), panel)
    said = [[facts(study, each) for each in _leaves(panel)] for panel in found.values()]
    titles = tell_apart([shared(own) for own in said])
    panels = []
    for panel, own, title in zip(found.values(), said, titles, strict=True):
        update: dict[str, Any] = {"title": panel.title or title}
        if isinstance(panel, LinePanel):
            update["lines"] = _labelled(panel.lines, tell_apart(own), target.ordered)
        panels.append(panel.model_copy(update=update))
    return panels


def _leaves(panel: Any) -> list[Any]:
    return panel.lines if isinstance(panel, LinePanel) else [panel]


def _labelled(lines: Sequence[Line], labels: Sequence[str], ordered: bool) -> list[Line]:
    """Return lines with labels and difficulties; those that are given stay."""
    shades = _SHADES.get(len(lines) if ordered else 0, (None,) * len(lines))
    return [
        line.model_copy(
            update={"label": line.label or label, "difficulty": line.difficulty or shade}
        )
        for line, label, shade in zip(lines, labels, shades, strict=True)
    ]
