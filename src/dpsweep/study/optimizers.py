"""The section `optimizers`: the update from noised gradients. The single table of optimizers.

A class has everything specific to an optimizer: its arguments, which are part of a trial's key; its name
in captions; its constructor; and whether the formula of `dpsweep.recommend` applies to its steps.

Schedules and averages belong to the optimizer too. Optimizers only post-process noised gradients, so none
of this changes epsilon (docs/privacy.md, "What comes after the noise").
"""

import math
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, FiniteFloat, TypeAdapter, model_validator

from dpsweep.study.cells import number
from dpsweep.study.section import ArgumentName, PositiveFloat, Section, Title

Share = Annotated[float, Field(ge=0, lt=1)]
Decay = Annotated[float, Field(gt=0, lt=1)]
Betas = Annotated[list[Share], Field(min_length=2, max_length=2)]
Argument = bool | int | FiniteFloat | str | list[FiniteFloat]

UNFIT = ("LBFGS", "SparseAdam")
"""The optimizers of torch that cannot take steps along sums of clipped gradients with noise."""
ONE_GRADIENT = (
    "an optimizer of torch that takes one gradient in each step, as SGD and Adam (LBFGS computes losses "
    "again, SparseAdam needs sparse gradients, and noise makes them dense)"
)
"""What is allowed in the place of one of `UNFIT`."""


class ExponentialAverage(Section):
    """An average in which every step has ``decay`` times the weight of the next; weights sum to 1.

    As in De et al. (2022), but the parameters before training have no weight.
    """

    kind: Literal["ema"]
    decay: Decay
    """weight of a step's parameters over those of the next step"""

    @property
    def title(self) -> str:
        """Return its name in captions."""
        return f"EMA {number(self.decay)}"

    def weight(self, step: int, steps: int) -> float:  # noqa: ARG002 (as of a tail)
        """Return the weight of the parameters after a step (from 1) in the average of the steps so far.

        >>> ema = ExponentialAverage(kind="ema", decay=0.5)
        >>> [round(ema.weight(step, 3), 3) for step in (1, 2, 3)]
        [1.0, 0.667, 0.571]
        """
        return (1 - self.decay) / (1 - self.decay**step)


class TailAverage(Section):
    """The mean over the last steps."""

    kind: Literal["tail"]
    share: Annotated[float, Field(gt=0, le=1)]
    """share of the T steps, rounded up"""

    @property
    def title(self) -> str:
        """Return its name in captions."""
        return f"mean of the last {100 * self.share:g} %"

    def weight(self, step: int, steps: int) -> float:
        """Return the weight of the parameters after a step (from 1) in the average of the steps so far.

        >>> tail = TailAverage(kind="tail", share=0.5)
        >>> [tail.weight(step, 4) for step in (1, 2, 3, 4)]
        [1.0, 1.0, 1.0, 0.5]
        """
        first = steps - math.ceil(round(self.share * steps, 9)) + 1
        return 1 / max(1, step - first + 1)


Average = Annotated[ExponentialAverage | TailAverage, Field(discriminator="kind")]


class OptimizerSection(Section):
    """Base of all optimizers."""

    constructor: ClassVar[str]
    """module:class"""
    options: ClassVar[dict[str, Any]] = {}
    """arguments of the constructor that change results only by rounding"""
    needs_noise_variance: ClassVar[bool] = False
    """whether the constructor takes ``noise_variance``, the variance in each coordinate of a gradient"""
    normalised_steps: ClassVar[bool] = False
    """whether each step moves each parameter by about the learning rate, as the formula of
    `dpsweep.recommend` assumes"""

    kind: str
    title: Title = ""
    """by default its name, with the settings that differ from the defaults"""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """of the learning rate over the T steps of a trial; cosine and linear fall to 0"""
    warmup: Share = 0.0
    """share of the T steps in which the learning rate rises to its full value"""
    average: Average | None = None
    """{kind: ema, decay: ...} or {kind: tail, share: ...}: measure and release this average of the parameters
    after each step; the last parameters are measured too"""

    def torch_class(self) -> tuple[str, dict[str, Any]]:
        """Return the constructor and its arguments, without the learning rate and the noise.

        >>> SGD(kind="sgd", momentum=0.9).torch_class()
        ('torch.optim:SGD', {'fused': True, 'momentum': 0.9, 'nesterov': False})
        """
        settings = self.model_dump(exclude={"kind", *OptimizerSection.model_fields})
        return self.constructor, {**self.options, **settings}

    def identity(self) -> str | dict[str, Any]:
        """Return the part of stored trials' keys: the kind, and settings that differ from its defaults.

        >>> SGD(kind="sgd").identity(), SGD(kind="sgd", momentum=0.9, title="Heavy ball").identity()
        ('sgd', {'kind': 'sgd', 'momentum': 0.9})
        """
        changed = self._changed()
        return {"kind": self.kind, **changed} if changed else self.kind

    def _changed(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults of its kind."""
        return self.model_dump(mode="json", exclude_defaults=True, exclude={"kind", "title"})

    def full_title(self, private: bool = False) -> str:
        """Return its name in captions, with the settings that differ from the defaults.

        >>> SGD(kind="sgd", momentum=0.9, schedule="cosine").full_title(private=True)
        'DP-SGD (cosine, momentum 0.9)'
        """
        if self.title:
            return self.title
        name = self.torch_class()[0].partition(":")[2]
        said = list(
            _settings_text(self._changed() | {"average": self.average and self.average.title})
        )
        return "DP-" * private + name + (f" ({', '.join(said)})" if said else "")

    def factor(self, step: int, steps: int) -> float:
        """Return the learning rate of a step (from 1) of T steps, as a share of the full one; never 0.

        >>> falling = Adam(kind="adam", schedule="linear", warmup=0.25)
        >>> [round(falling.factor(step, 8), 2) for step in range(1, 9)]
        [0.33, 0.67, 1.0, 0.83, 0.67, 0.5, 0.33, 0.17]
        """
        rising = round(self.warmup * steps)
        if step <= rising:
            return step / (rising + 1)
        gone = (step - rising - 1) / (steps - rising)
        match self.schedule:
            case "cosine":
                return (1 + math.cos(math.pi * gone)) / 2
            case "linear":
                return 1 - gone
        return 1.0


class TwoMoments(OptimizerSection):
    """Base of optimizers that divide the mean gradient by the root of the mean squared gradient."""

    betas: Betas = [0.9, 0.999]
    """decay of the first and of the second moment, for a step"""
    eps: PositiveFloat = 1e-8
    """added to the root of the second moment"""


class Adam(TwoMoments):
    """Adam (Kingma and Ba 2015); with noised gradients it is DP-Adam."""

    constructor = "torch.optim:Adam"
    # One kernel for all parameters, because FiLM has many small ones.
    options = {"fused": True}
    normalised_steps = True

    kind: Literal["adam"]


class AdamW(TwoMoments):
    """Adam with weight decay decoupled from its moments (Loshchilov and Hutter 2019)."""

    constructor = "torch.optim:AdamW"
    options = {"fused": True}
    normalised_steps = True

    kind: Literal["adamw"]
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    """times the learning rate, the share by which a step shrinks every parameter"""


class SGD(OptimizerSection):
    """Stochastic gradient descent, with or without momentum."""

    constructor = "torch.optim:SGD"
    options = {"fused": True}

    kind: Literal["sgd"]
    momentum: Share = 0.0
    """share of the last step that each step repeats"""
    nesterov: bool = False
    """look ahead along the momentum (Nesterov 1983)"""

    @model_validator(mode="after")
    def _looks_ahead_along_momentum(self) -> Self:
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov: found true with momentum 0; allowed: a momentum above 0")
        return self


class BiasCorrectedAdam(TwoMoments):
    """Adam with the noise variance subtracted from its second moment: DP-AdamBC (Tang et al. 2024)."""

    constructor = "dpsweep.training.optimizer:AdamBC"
    needs_noise_variance = True

    kind: Literal["adam-bc"]
    floor: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """smallest second moment after the noise variance is subtracted, in units of that variance"""


class TorchOptimizer(OptimizerSection):
    """Any other class of torch.optim, by its name."""

    constructor = "torch.optim:"

    kind: Literal["torch"]
    name: ArgumentName
    """of the class, such as RMSprop"""
    arguments: dict[ArgumentName, Argument] = {}
    """of the class, such as {alpha: 0.9}; dpsweep check tries them"""

    @model_validator(mode="after")
    def _leaves_what_others_decide(self) -> Self:
        if self.name in UNFIT:
            raise ValueError(f"name: found {self.name}; allowed: {ONE_GRADIENT}")
        if given := sorted({"lr", "params", "maximize"} & self.arguments.keys()):
            raise ValueError(
                f"arguments: found {given[0]}; allowed: other arguments of the class (sweeps and methods "
                "decide lr and params, and with maximize steps raise the loss)"
            )
        return self

    def torch_class(self) -> tuple[str, dict[str, Any]]:
        """Return the class, and its arguments."""
        return f"{self.constructor}{self.name}", dict(self.arguments)


Optimizer = Annotated[
    Adam | AdamW | SGD | BiasCorrectedAdam | TorchOptimizer,
    Field(discriminator="kind"),
]
_ADAPTER: TypeAdapter[OptimizerSection] = TypeAdapter(Optimizer)


def optimizer_of(identity: str | dict[str, Any]) -> OptimizerSection:
    """Return the optimizer of an identity, with its defaults.

    >>> optimizer_of({"kind": "sgd", "momentum": 0.9}).full_title()
    'SGD (momentum 0.9)'

    Raises:
        ValidationError: no optimizer has this identity.
    """
    return _ADAPTER.validate_python({"kind": identity} if isinstance(identity, str) else identity)


BY_DEFAULT = {kind: optimizer_of(kind) for kind in ("adam", "adamw", "sgd", "adam-bc")}
"""The optimizers that a study may name without defining them."""


def _settings_text(changed: dict[str, Any]) -> Iterator[str]:
    """Yield a caption's words for each setting that differs from the defaults."""
    for key, value in changed.items():
        match key, value:
            case "name", _:  # already in the title
                continue
            case "arguments", _:
                yield from _settings_text(value)
            case (("schedule" | "average"), str()):
                yield value
            case "warmup", _:
                yield f"{100 * value:g} % warm-up"
            case _, None:
                continue
            case _, True:
                yield key
            case _:
                values = value if isinstance(value, list) else [value]
                texts = (f"{each:g}" if isinstance(each, float) else str(each) for each in values)
                yield " ".join([key.replace("_", " "), *texts])
