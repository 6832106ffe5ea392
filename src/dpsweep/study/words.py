"""Words of selections to the values that they stand for in the grids of a study."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dpsweep.study.captions import listed
from dpsweep.study.cells import Problem, number
from dpsweep.study.clipping import RULES, clipping_kind
from dpsweep.study.config.study import StudyFile
from dpsweep.study.grids import Chosen, Grids
from dpsweep.study.messages import shorten, unknown
from dpsweep.study.selections import AXES, DEFAULTS, PARTS, VALUES, Selection
from dpsweep.study.table_targets import Table
from dpsweep.study.targets import Figure, PerClass

# Steps of an epoch that can be drawn one by one.
_MOST_STEPS = 100
_SYMBOLS = {
    "epochs": "epochs", "epsilon": "epsilon", "clipping_bound": "clipping bound",
    "batch_size": "batch size",
}  # fmt: skip


class NotDrawnError(LookupError):
    """A target that the study does not have the cells for; the message says what it lacks."""


class MistakeError(ValueError):
    """A selection that is wrong in itself; the message names key, value and what is allowed."""


@dataclass
class _Leaf:
    """A selection while its words get values."""

    where: str
    selection: Selection
    chosen: Chosen
    drawn: tuple[str, ...]
    """axes that must have two values or more"""
    candidates: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def dataset(self) -> str:
        return self.selection.problem.dataset


class Words:
    """Roles and words of a study's selections.

    Args:
        study: the study; its sections have been checked.
    """

    def __init__(self, study: StudyFile) -> None:
        self._study = study
        self._grids = Grids(study.sweeps.values())

    # -- roles -------------------------------------------------------------------------------

    def names(self, where: str, part: str, role: str) -> list[str]:
        """The names that a role or a name stands for.

        Args:
            where: key path of what is looked up, for a mistake.
            part: dataset, backbone or method.
            role: a role, or a name.

        Raises:
            NotDrawnError: the role is not bound.
            MistakeError: it is neither a role nor a name.
        """
        bound = self._study.roles.bound(part, role)
        section: dict[str, Any] = getattr(self._study, f"{part}s")
        if bound:
            return bound
        if role in section:
            return [role]
        if bound is None:
            allowed = [*self._study.roles.roles_of(part), *section]
            raise MistakeError(f"{where}.{part}: {unknown(role, allowed)}")
        raise NotDrawnError(f"roles.{part}s.{role} is not bound")

    def named(self, where: str, selection: Selection) -> Selection:
        """A selection with names in place of roles, and with what it leaves out about the problem.

        Raises:
            NotDrawnError: a role is not bound, or no sweep trains the problem.
            MistakeError: an unknown name, or a role that stands for several.
        """
        found: dict[str, Any] = {"optimizer": selection.optimizer or DEFAULTS["optimizer"]}
        explicit = True
        for part in PARTS:
            role = getattr(selection, part)
            names = self.names(where, part, role or DEFAULTS[part])
            if len(names) > 1:
                raise MistakeError(
                    f"{where}.{part}: found {role}, which stands for {listed(names)}; allowed: one "
                    f"name, or foreach: {{{part}: {role}}}"
                )
            found[part] = names[0]
            explicit &= role == names[0]
        clipping = clipping_kind(selection.clipping_bound)
        problem = Problem(**found)
        if not self._grids.has(problem.name, clipping):
            study = self._study
            trained = (
                f"{study.backbones[problem.backbone].title} with "
                f"{study.methods[problem.method].title} on {study.datasets[problem.dataset].title}"
                + (" by SGD" if problem.optimizer == "sgd" else "")
                + (f" with clipping_bound {clipping}" if clipping != "flat" else "")
            )
            if explicit:
                allowed = ", ".join(study.problems)
                raise MistakeError(f"{where}: no sweep trains {trained}; allowed: {allowed}")
            raise NotDrawnError(f"no sweep trains {trained}")
        return selection.model_copy(update=found)

    # -- words -------------------------------------------------------------------------------

    def resolve(
        self,
        target: Figure | Table,
        parts: Sequence[tuple[str, Selection]],
        series: bool = False,
    ) -> tuple[list[Selection], float | None]:
        """Give all selections of a target their values.

        Args:
            target: the target, for what it needs of a selection.
            parts: (key path, selection) each; what they leave out means what it says in
                `dpsweep.study.selections`.
            series: whether the values of an axis will be drawn one by one.

        Returns:
            The selections with names and lists of values, and of a figure that compares clipping
            bounds the one that the word baseline stands for (None where there is none).

        Raises:
            NotDrawnError: the study lacks a role or cells.
            MistakeError: a name or value that does not exist, or one too many.
        """
        leaves = []
        for where, part in parts:
            kind = clipping_kind(part.clipping_bound)
            if target.needs_bounds and kind != "flat":
                raise MistakeError(
                    f"{where}.clipping_bound: found {kind}; allowed: numbers (a {target.family} "
                    "figure draws C)"
                )
            named = self.named(where, part)
            bounded = kind == "flat" or math.isfinite(RULES[kind].sensitivity)
            private = bounded and math.inf not in part.values("epsilon")
            # What the file says in numbers is as it is meant. Only flat clipping has bounds to draw.
            drawn = (
                axis
                for axis in target.drawn_axes()
                if not _is_given(getattr(part, axis))
                and (kind == "flat" or axis != "clipping_bound")
            )
            chosen = Chosen(named.problem.name, kind, private)
            leaves.append(_Leaf(where, named, chosen, tuple(drawn)))
        for axis in AXES:
            self._resolve_axis(axis, leaves)
        baseline = self._baseline(leaves) if isinstance(target, PerClass) else None
        for leaf in leaves:
            self._check(target, leaf, series)
        return [leaf.selection for leaf in leaves], baseline

    def _resolve_axis(self, axis: str, leaves: list[_Leaf]) -> None:
        for leaf in leaves:
            leaf.candidates[axis] = self._grids.drawable(leaf.chosen, axis, leaf.drawn)
        specs = [getattr(leaf.selection, axis) for leaf in leaves]
        if axis == "epochs":
            specs = ["usual" if spec is None else spec for spec in specs]
        for leaf, spec in zip(leaves, specs, strict=True):
            chosen: list[Any]
            if spec is None or spec == "all" or clipping_kind(spec) != "flat":
                chosen = leaf.candidates[axis]
            elif not _is_given(spec):
                common = self._common(axis, leaf.dataset, spec, leaves, specs)
                chosen = self._stands_for(spec, axis, leaf, common)
            else:
                values = spec if isinstance(spec, list) else [spec]
                self._allow(
                    f"{leaf.where}.{axis}", leaf, values, self._grids.values(leaf.chosen, axis)
                )
                chosen = values
            if axis == "epochs" and spec == "all" and len(chosen) == 1:
                raise NotDrawnError(f"{self._of(leaf)} has one number of epochs, {chosen[0]}")
            if not chosen:
                raise NotDrawnError(self._nothing(axis, leaf))
            leaf.chosen = leaf.chosen.choose(axis, chosen)
            leaf.selection = leaf.selection.model_copy(update={axis: chosen})

    def _common(
        self, axis: str, dataset: str, word: str, leaves: list[_Leaf], specs: list[Any]
    ) -> list[Any]:
        """The values that all selections of a dataset with a word on an axis have."""
        about_one = ("baseline", "neighbours")
        words = about_one if word in about_one else (word,)
        group = [
            leaf.candidates[axis]
            for leaf, spec in zip(leaves, specs, strict=True)
            if leaf.dataset == dataset and spec in words
        ]
        return [value for value in group[0] if all(value in each for each in group)]

    def _stands_for(self, word: str, axis: str, leaf: _Leaf, common: list[Any]) -> list[Any]:
        """Give a word its values, of those that all selections with it have, ascending."""
        match (word, axis):
            case ("usual", _):
                return self._usual_epochs(leaf.dataset, common)
            case ("small", "batch_size"):
                return self._small_batch(leaf.dataset, common)
            case ("baseline" | "neighbours", _):
                return self._about_baseline(word, leaf, common)
            case ("loose" | "many" | "large", _):
                return common[-1:]
            case ("tight" | "few" | "small", _):
                return common[:1]
        return common

    def _usual_epochs(self, dataset: str, common: list[int]) -> list[int]:
        problems = [name for name, each in self._study.problems.items() if each.dataset == dataset]
        by_cells = sorted(common, key=lambda epochs: (self._grids.count(problems, epochs), epochs))
        return by_cells[-1:]

    def _small_batch(self, dataset: str, common: list[Any]) -> list[Any]:
        few = [size for size in common if self._study.steps(dataset, 1, size) <= _MOST_STEPS]
        return few[:1] or common[-1:]

    def _about_baseline(self, word: str, leaf: _Leaf, common: list[float]) -> list[float]:
        """The baseline, or it and its neighbours."""
        method = leaf.selection.problem.method
        given = self._study.roles.neighbours.get(method)
        if given is not None:
            self._allow(
                f"roles.neighbours.{method}", leaf, given, leaf.candidates["clipping_bound"]
            )
            return given if word == "neighbours" else given[1:2]
        if not common:
            return []
        baseline = min(common, key=lambda bound: (abs(math.log(bound)), bound))
        if word == "baseline":
            return [baseline]
        position = common.index(baseline)
        neighbours = common[max(0, position - 1) : position + 2]
        if len(neighbours) < 2:
            raise NotDrawnError(f"{self._of(leaf)} has one clipping bound, {number(baseline)}")
        return neighbours

    @staticmethod
    def _allow(where: str, leaf: _Leaf, values: list[Any], allowed: list[Any]) -> None:
        for value in values:
            if value not in allowed:
                raise MistakeError(
                    f"{where}: found {number(value)}; allowed ({leaf.selection.problem.name}): "
                    f"{shorten(map(number, allowed))}"
                )

    def _baseline(self, leaves: list[_Leaf]) -> float | None:
        bounds = [
            [bound for bound in leaf.candidates["clipping_bound"] if not isinstance(bound, str)]
            for leaf in leaves
        ]
        if not bounds:
            return None
        common = [bound for bound in bounds[0] if all(bound in each for each in bounds)]
        return next(iter(self._about_baseline("baseline", leaves[0], common)), None)

    # -- what a target needs -----------------------------------------------------------------

    def _check(self, target: Figure | Table, leaf: _Leaf, series: bool) -> None:
        for axis in target.single_axes():
            values = leaf.selection.values(axis)
            if len(values) > 1 and not series:
                raise MistakeError(
                    f"{leaf.where}.{axis}: found {shorten(map(number, values))}; allowed: one of "
                    f"them (a {target.family} draws one {axis} here)"
                )
        for axis in leaf.drawn:
            values = leaf.selection.values(axis)
            if len(values) < 2:
                raise NotDrawnError(
                    f"{self._of(leaf)} has one {_SYMBOLS[axis]}, {number(values[0])}"
                )

    @staticmethod
    def _of(leaf: _Leaf) -> str:
        return leaf.selection.problem.name

    def _nothing(self, axis: str, leaf: _Leaf) -> str:
        drawn = [_SYMBOLS[each] for each in leaf.drawn if each != axis]
        several = f" with two {listed(drawn)}s or more" if drawn else ""
        return f"{self._of(leaf)} has no {_SYMBOLS[axis]}{several} that all parts share"


def _is_given(spec: Any) -> bool:
    """Whether the file says a value itself, not a word for it or nothing."""
    return spec is not None and (not isinstance(spec, str) or spec in VALUES)
