"""The section `sweeps`: grids of hyperparameters, and the search over learning rates that skips trials."""

import itertools
import math
from collections.abc import Callable
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, PositiveInt, WithJsonSchema, model_validator

from dpsweep.study import section
from dpsweep.study.cells import CELL_AXES, Cell, Problem, number
from dpsweep.study.clipping import RULES, ClippingBound, RuleName
from dpsweep.study.messages import shorten

Part = TypeVar("Part")

# The best trial of a cell keeps its parameters after every epoch if they take at most this many bytes.
# Every FiLM, LoRA and head-only trial of the paper does; gradient norms of a larger one train it again.
KEPT_PARAMETER_BYTES = 100e6


Optimizers = (
    Annotated[list[section.Name], Field(min_length=1)]
    | Annotated[
        dict[section.Name, section.LearningRates | section.Geometric | None], Field(min_length=1)
    ]
)
"""Several optimizers, optionally with their own learning rates."""


def one_optimizer_each(sweeps: dict[str, "Sweep"]) -> dict[str, "Sweep"]:
    """Replace a sweep of several optimizers by one sweep for each, ``<sweep>_<optimizer>``.

    Raises:
        ValueError: there is a sweep with such a name.
    """
    return _one_each(sweeps, Sweep.by_optimizer)


def one_method_each(sweeps: Any) -> Any:
    """Replace a sweep of several methods, before it is read, by one sweep for each, ``<sweep>_<method>``.

    Raises:
        ValueError: there is a sweep with such a name.
    """
    return _one_each(sweeps, _by_method) if isinstance(sweeps, dict) else sweeps


def _by_method(sweep: Any) -> list[tuple[Any, Any]]:
    """Return one sweep for each of several methods, with the method; none for a single method."""
    methods = sweep.get("method") if isinstance(sweep, dict) else None
    several = methods if isinstance(methods, list) else []
    return [(each, sweep | {"method": each}) for each in several]


def _one_each(
    sweeps: dict[str, Part], divided: Callable[[Part], list[tuple[str, Part]]]
) -> dict[str, Part]:
    """Replace each sweep that is divided by its parts, ``<sweep>_<part>``."""
    found: dict[str, Part] = {}
    for name, sweep in sweeps.items():
        several = [(f"{name}_{each}", one) for each, one in divided(sweep)]
        for each, one in several or [(name, sweep)]:
            if each in found or (each in sweeps and several):
                raise ValueError(
                    f"{name}: makes a sweep {each}, and there is another one of this name; allowed: "
                    "names that are unique when methods and optimizers are joined to them with _"
                )
            found[each] = one
    return found


def bounds_or_rule(value: list[float] | RuleName) -> list[ClippingBound]:
    """Return the values of a clipping axis: bounds, or the name of a rule without one."""
    return [value] if isinstance(value, str) else list(value)


class Sweep(section.Section):
    """A grid of cells on one (dataset, backbone, method, optimizer), or on several optimizers."""

    dataset: section.Name
    """a name of datasets"""
    backbone: section.Name
    """a name of backbones"""
    method: Annotated[
        section.Name, WithJsonSchema({"type": ["string", "array"], "items": {"type": "string"}})
    ]
    """a name of methods, or a list of names: one sweep for each, ``<sweep>_<method>``"""
    optimizer: section.Name | Optimizers = "adam"
    """a name, or a list of names; or a mapping from each to its own learning rates"""
    epsilon: section.Axis[section.Epsilon]
    """values of ε; .inf trains without privacy"""
    epochs: section.Axis[PositiveInt]
    """values of E; T = round(E N / B) steps"""
    batch_size: section.BatchSizes
    """expected batch sizes B, ascending; full is the whole training set"""
    clipping_bound: section.Grid | RuleName
    """a list of C, or automatic (AUTO-S), or none (epsilon .inf only)"""
    learning_rate: section.LearningRates | section.Geometric
    """a list, or a geometric grid"""
    seeds: Annotated[PositiveInt, Field(le=section.LONGEST_AXIS)]
    """number of seeds: 1, 2, ..."""
    physical_batch: PositiveInt | Literal["auto"] | None = None
    """overrides training.physical_batch"""
    gpus: section.Gpus | None = None
    """overrides training.gpus"""
    engine: section.Engine | None = None
    """overrides the method's engine and training.engine"""

    @model_validator(mode="after")
    def _private_training_clips(self) -> Self:
        rule = self.clipping_bound
        if (
            isinstance(rule, str)
            and math.isinf(RULES[rule].sensitivity)
            and self.epsilon != [math.inf]
        ):
            raise ValueError(
                f"clipping_bound: found {rule} with epsilon "
                f"[{shorten(map(number, self.epsilon))}]; allowed: epsilon [.inf] "
                "only, because nothing bounds the influence of one example"
            )
        return self

    def by_optimizer(self) -> list[tuple[str, Self]]:
        """Return one sweep for each of several optimizers, with the optimizer; none for a single one."""
        if isinstance(several := self.optimizer, str):
            return []
        own = several if isinstance(several, dict) else {}
        found = []
        for name in several:
            rates = own.get(name)
            update = {"optimizer": name, "learning_rate": rates or self.learning_rate}
            found.append((name, self.model_copy(update=update)))
        return found

    @property
    def problem(self) -> Problem:
        """The problem of the sweep; the sweep must have one optimizer."""
        return Problem(self.dataset, self.backbone, self.method, str(self.optimizer))

    @property
    def axes(self) -> dict[str, list[Any]]:
        """The values of the cells, by axis."""
        axes = {axis: getattr(self, axis) for axis in CELL_AXES}
        return axes | {"clipping_bound": self.clipping_bounds}

    @property
    def private_epsilon(self) -> list[float]:
        """The values of epsilon without infinity."""
        return [epsilon for epsilon in self.epsilon if not math.isinf(epsilon)]

    def cells(self) -> list[Cell]:
        """Return all cells of the sweep, in grid order."""
        problem = self.problem.name
        return [Cell(problem, *place) for place in itertools.product(*self.axes.values())]

    @property
    def clipping_bounds(self) -> list[ClippingBound]:
        """The clipping axis of the grid; one value for a rule without a bound."""
        return bounds_or_rule(self.clipping_bound)

    @property
    def learning_rates(self) -> list[float]:
        """The learning rates, ascending."""
        grid = self.learning_rate
        return list(grid) if isinstance(grid, list) else grid.values


def bracket_maximum(count: int, score: Callable[[int], float]) -> int:
    """Find the maximum of a sequence that rises and then falls, from few of its values.

    >>> bracket_maximum(8, lambda position: -abs(position - 5))
    5

    Fibonacci search (Kiefer 1953): two values inside the interval with the maximum show which end to
    drop, and one of them is used again. `bracket_trials` values are enough for a strictly unimodal
    sequence. With noise or a plateau the search can miss the best value, but it never fails.

    Args:
        count: length of the sequence.
        score: returns the value at a position; it is called at most once for each.

    Returns:
        The position of the largest value that was computed; the smallest position on ties.
    """
    values: dict[int, float] = {}

    def value(position: int) -> float:
        if position >= count:
            return float("-inf")  # the sequence falls behind its end
        if position not in values:
            values[position] = score(position)
        return values[position]

    near, far = _first_probes(count)
    before = -1
    while near != far:
        if value(before + near) < value(before + far):
            before += near
        near, far = far - near, near
    value(before + far)
    return max(sorted(values), key=values.__getitem__)


def bracket_trials(count: int) -> int:
    """Return the largest number of values of a sequence of this length that `bracket_maximum` computes."""
    near, far = _first_probes(count)
    trials = 1
    while near != far:
        near, far, trials = far - near, near, trials + 1
    return min(trials, count)


def _first_probes(count: int) -> tuple[int, int]:
    """Return consecutive Fibonacci numbers with a sum larger than ``count``."""
    near, far = 1, 1
    while near + far - 1 < count:
        near, far = far, near + far
    return near, far
