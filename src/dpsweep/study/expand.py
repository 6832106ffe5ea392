"""The figures and tables of a study, from templates that speak of roles.

A template becomes one target, or one for each member of a series. Roles get names, words get
values (`dpsweep.study.words`), panels of a series are written out, and titles and captions are made
(`dpsweep.study.captions`). What the study has no roles or cells for is listed with the reason.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from dpsweep.study.assemble import Written, assemble
from dpsweep.study.captions import CAPTION_WORDS, caption
from dpsweep.study.cells import number
from dpsweep.study.clipping import ClippingBound
from dpsweep.study.compared import ComparedCells
from dpsweep.study.config.study import StudyFile
from dpsweep.study.messages import LONGEST_JOINED_NAME, NAME_PATTERN, unknown
from dpsweep.study.selections import PARTS, SEVERAL, Foreach, LinePanel, Panel, Selection
from dpsweep.study.table_targets import ComparisonTable, Table, TuningImplications
from dpsweep.study.targets import Figure, PerClass
from dpsweep.study.words import MistakeError, NotDrawnError, Words

_NUMERIC = ("epochs", "epsilon", "clipping_bound")
_Template = TypeVar("_Template", Figure, Table)
_Part = Panel | LinePanel | ComparedCells | Selection


@dataclass
class Targets:
    """Figures and tables of a study.

    Attributes:
        figures: figures by name; every selection has names and values.
        tables: tables by name.
        undrawn: what is not drawn, and why.
        mistakes: what is wrong in the templates.
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


def expand(study: StudyFile, figures: Mapping[str, Figure], tables: Mapping[str, Table]) -> Targets:
    """Write out the targets of a study.

    Args:
        study: the study, whose other sections have been checked.
        figures: the templates of figures, as the file has them.
        tables: those of tables.
    """
    return _Expansion(study).run(figures, tables)


class _Expansion:
    def __init__(self, study: StudyFile) -> None:
        self._study = study
        self._words = Words(study)
        self._found = Targets()
        self._left_out: dict[str, None] = {}

    def run(self, figures: Mapping[str, Figure], tables: Mapping[str, Table]) -> Targets:
        for name, figure in figures.items():
            self._add(f"figures.{name}", name, figure, self._found.figures)
        for name, table in tables.items():
            self._add(f"tables.{name}", name, table, self._found.tables)
        return self._found

    def _add(
        self, where: str, name: str, template: _Template, targets: dict[str, _Template]
    ) -> None:
        for binding, member in self._members(where, template):
            written = self._name(name, binding)
            self._left_out.clear()
            try:
                if isinstance(member, NotDrawnError):
                    raise member
                target = self._target(where, member)
            except NotDrawnError as reason:
                self._found.undrawn[written] = str(reason)
                continue
            except MistakeError as mistake:
                if str(mistake) not in self._found.mistakes:
                    self._found.mistakes.append(str(mistake))
                continue
            if not re.match(NAME_PATTERN, written):
                self._found.mistakes.append(
                    f"{where}: its name becomes {written}; allowed: letters, digits, '.', '_' and '-'"
                )
            elif len(written) > LONGEST_JOINED_NAME:
                self._found.mistakes.append(
                    f"{where}: its name becomes one of {len(written)} characters; "
                    f"allowed: at most {LONGEST_JOINED_NAME}"
                )
            elif written in self._found.figures or written in self._found.tables:
                self._found.mistakes.append(
                    f"{where}: found a target of the name {written}; allowed: a name that is unique"
                )
            else:
                targets[written] = target
                if self._left_out:
                    self._found.undrawn[f"parts of {written}"] = "; ".join(self._left_out)

    # -- series of targets -------------------------------------------------------------------

    def _members(
        self, where: str, template: _Template
    ) -> Iterator[tuple[dict[str, Any], _Template | NotDrawnError]]:
        """The members of a series, each with what tells it apart; the template where there is none.

        A member whose roles are not bound is the reason for that.
        """
        if template.foreach is None:
            yield {}, template
            return
        several = template.foreach if isinstance(template.foreach, list) else [template.foreach]
        for foreach in several:
            for binding in self._combinations(foreach):
                yield from self._bound_members(where, template, foreach, binding)

    def _bound_members(
        self, where: str, template: _Template, foreach: Foreach, binding: dict[str, Any]
    ) -> Iterator[tuple[dict[str, Any], _Template | NotDrawnError]]:
        shown: dict[str, Any] = {part: f"<{role}>" for part, role in binding.items()}
        try:
            for part, role in binding.items():
                (shown[part],) = self._words.names(f"{where}.foreach", part, role)
            member = self._with(template, binding)
            axes = {axis: self._series(where, member, axis, foreach) for axis in _NUMERIC}
            given = {axis: values for axis, values in axes.items() if values}
            for values in itertools.product(*given.values()):
                own = dict(zip(given, values, strict=True))
                yield shown | own, self._with(member, own)
        except NotDrawnError as reason:
            waiting = {axis: f"<{axis}>" for axis in _NUMERIC if getattr(foreach, axis) is not None}
            yield shown | waiting, reason
        except MistakeError as mistake:
            if str(mistake) not in self._found.mistakes:
                self._found.mistakes.append(str(mistake))

    def _series(self, where: str, member: _Template, axis: str, foreach: Foreach) -> list[Any]:
        """The values of a series along an axis; none where it does not run along it."""
        given = getattr(foreach, axis)
        found: dict[Any, None] = {}
        for word in given if isinstance(given, list) else [] if given is None else [given]:
            if not isinstance(word, str):
                found[word] = None
                continue
            # The members share all their values.
            tried = self._with(member, {axis: "common" if word == "all" else word})
            leaves = [leaf for part in self._parts(where, tried) for leaf in part.leaves()]
            resolved, _ = self._words.resolve(tried, leaves, series=True)
            found.update(dict.fromkeys(resolved[0].values(axis)))
        return sorted(found)

    def _combinations(self, foreach: Foreach) -> Iterator[dict[str, str]]:
        """Every combination of the roles or names of a series."""
        lists = {part: getattr(foreach, part) for part in PARTS if getattr(foreach, part)}
        every = [each if isinstance(each, list) else [each] for each in lists.values()]
        for roles in itertools.product(*every):
            yield dict(zip(lists, roles, strict=True))

    @staticmethod
    def _with(template: _Template, values: Mapping[str, Any]) -> _Template:
        select = (template.select or Selection()).model_copy(update=dict(values))
        return template.model_copy(update={"select": select, "foreach": None})

    def _name(self, name: str, binding: Mapping[str, Any]) -> str:
        """The name of a member of a series."""
        aliases = self._study.roles.target_names
        for key, value in binding.items():
            text = aliases.get(value, value) if isinstance(value, str) else number(value)
            name = name.replace(f"{{{key}}}", text)
        return name

    # -- one target --------------------------------------------------------------------------

    def _target(self, where: str, template: _Template) -> _Template:
        """The target of a template that is no series."""
        target: Any = template
        if isinstance(target, TuningImplications):
            target = target.of(self._crossed_grids())
            selections = target.leaves()
        else:
            parts = self._final_parts(where, target)
            leaves = [leaf for part in parts for leaf in part.leaves()]
            selections, baseline = self._words.resolve(target, leaves) if leaves else ([], None)
            if isinstance(target, PerClass):
                target = self._compared(where, target, selections, baseline)
            target = assemble(self._study, where, target, parts, selections, self._left_out)
        own = {key: getattr(target, key) for key in ("baseline", "centre") if hasattr(target, key)}
        try:
            drawn = (*target.drawn_axes(), *target.single_axes())
            text = caption(self._study, target.caption, selections, own, drawn)
            text = f"{text} {target.caption_end()}".rstrip()
        except KeyError as word:
            raise MistakeError(
                f"{where}.caption: {unknown(word.args[0], CAPTION_WORDS)} in braces"
            ) from None
        return cast(_Template, target.model_copy(update={"caption": text}))

    def _crossed_grids(self) -> list[Selection]:
        """The private grid of every sweep that crosses batch sizes with clipping bounds."""
        found = []
        for sweep in self._study.sweeps.values():
            private = [epsilon for epsilon in sweep.epsilon if epsilon != float("inf")]
            bounds: list[ClippingBound] = [
                bound for bound in sweep.clipping_bounds if not isinstance(bound, str)
            ]
            if private and len(bounds) > 1 and len(sweep.batch_size) > 1:
                found.append(
                    Selection(
                        dataset=sweep.dataset,
                        backbone=sweep.backbone,
                        method=sweep.method,
                        optimizer=sweep.optimizer,
                        epsilon=private,
                        epochs=list(sweep.epochs),
                        batch_size=list(sweep.batch_size),
                        clipping_bound=bounds,
                    )
                )
        if not found:
            raise NotDrawnError("no sweep has two batch sizes and two clipping bounds")
        return found

    def _compared(
        self, where: str, target: PerClass, selections: list[Selection], baseline: float | None
    ) -> PerClass:
        """The figure with the bound that others are compared with."""
        if "baseline" in target.model_fields_set:
            baseline = target.baseline
            for each in selections:
                if not self._study.has_all(target.at_baseline(each)):
                    raise MistakeError(
                        f"{where}.baseline: found {number(baseline)}; allowed: a clipping bound of "
                        f"{each.problem.name}"
                    )
        if baseline is None:
            raise NotDrawnError("its panels have no clipping bound in common")
        return target.model_copy(update={"baseline": baseline})

    def _parts(self, where: str, target: Any) -> list[Written]:
        """The parts of a target, those of a series of names or of listed values written out.

        A part that the study has no roles or cells for is left out.
        """
        self._left_out.clear()
        if not hasattr(target, target.part):
            return []
        parts = getattr(target, target.part)
        if isinstance(parts, Selection):
            return [Written(f"{where}.{target.part}", parts.over(target.select))]
        found: list[Written] = []
        for index, part in enumerate(parts):
            place, whole = f"{where}.{target.part}[{index}]", part.over(target.select)
            for binding in self._combinations(part.foreach or Foreach()):
                try:
                    found += self._copies(place, whole, binding)
                except NotDrawnError as reason:
                    self._left_out[str(reason)] = None
        if not found:
            raise NotDrawnError("; ".join(self._left_out))
        return found

    def _copies(self, where: str, part: Any, binding: dict[str, str]) -> list[Written]:
        """A part of a target, once for each name and listed value of its series.

        Raises:
            NotDrawnError: a role is not bound, or no sweep trains the problem.
        """
        foreach = part.foreach or Foreach()
        names = [self._words.names(f"{where}.foreach", *each) for each in binding.items()]
        copies = [
            copy
            for combination in itertools.product(*names)
            for copy in self._along_axes(
                where, part, foreach, dict(zip(binding, combination, strict=True))
            )
        ]
        for place, leaf in (each for copy in copies for each in copy.leaves()):
            self._words.named(place, leaf)
        return copies

    @staticmethod
    def _along_axes(
        where: str, part: Any, foreach: Foreach, own: dict[str, Any]
    ) -> Iterator[Written]:
        """Copies of a part at the listed values of a series; words of several values are pending."""
        words = {axis: getattr(foreach, axis) for axis in _NUMERIC if getattr(foreach, axis)}
        pending = {axis: word for axis, word in words.items() if word in SEVERAL}
        lists = {axis: word for axis, word in words.items() if axis not in pending}
        every = [each if isinstance(each, list) else [each] for each in lists.values()]
        for values in itertools.product(*every):
            update = own | pending | dict(zip(lists, values, strict=True)) | {"foreach": None}
            yield Written(where, part.model_copy(update=update), tuple(pending))

    def _final_parts(self, where: str, target: Any) -> list[Written]:
        """The parts of a target, series along the grid written out too."""
        parts = self._parts(where, target)
        if not any(part.pending for part in parts):
            return parts
        leaves = [leaf for part in parts for leaf in part.leaves()]
        resolved, _ = self._words.resolve(target, leaves, series=True)
        values = iter(resolved)
        final = []
        for part in parts:
            first, *_ = [next(values) for _ in part.leaves()]
            axes = [first.values(axis) for axis in part.pending]
            if not isinstance(target, ComparisonTable):
                # From the easy problem to the hard one.
                axes = [
                    each[::-1] if axis == "epsilon" else each
                    for axis, each in zip(part.pending, axes, strict=True)
                ]
            for combination in itertools.product(*axes):
                own = dict(zip(part.pending, combination, strict=True))
                final.append(Written(part.where, part.part.model_copy(update=own)))
        return final
