"""Private steps: any torch optimizer on clipped, summed and noised gradients.

What comes after the noise (`make_optimizer`, `RunningAverage`, `AdamBC`) never reads private data: see
docs/privacy.md, "What comes after the noise".
"""

import math
from collections.abc import Iterable, Mapping
from pkgutil import resolve_name
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import Parameter

from dpsweep.base.errors import DpsweepError, real
from dpsweep.gradients.engines import GradientEngine, first_line, is_out_of_memory
from dpsweep.gradients.units import units_of
from dpsweep.study import Study
from dpsweep.study.clipping import Clipping
from dpsweep.study.messages import brief, shorten
from dpsweep.study.optimizers import ONE_GRADIENT, UNFIT, OptimizerSection, TorchOptimizer
from dpsweep.training import processes
from dpsweep.training.physical import DoesNotFitError
from dpsweep.training.randomness import GaussianNoise, Indices

MicroBatch = tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Indices]
"""Inputs, labels, mask and, with units, the number of each row's unit.

The mask is false in rows that do not count.
"""

_PARTS = (
    "a step: found {found}; expected a list of tuples (inputs, labels, mask), as `dpsweep.microbatches` "
    "yields their rows and masks"
)
_SPLIT = (
    "units: found rows of unit {unit} in two micro-batches of a step, so that it would be clipped twice; "
    "allowed: whole units, as dpsweep.microbatches puts them"
)
_UNFIT = tuple(getattr(torch.optim, name) for name in UNFIT)


class StepStatistics(NamedTuple):
    """Statistics of one step's examples and gradients, as scalar tensors on the device.

    With units, an example is a unit.

    They are not private: see docs/privacy.md.

    Attributes:
        sampled_examples: size of the sampled batch, int64.
        norm_sum: sum of the finite gradient norms before clipping.
        clipped_examples: number of gradients above the clipping bound, int64.
        nonfinite_examples: number of gradients that were not finite and count as zero, int64.
    """

    sampled_examples: Tensor
    norm_sum: Tensor
    clipped_examples: Tensor
    nonfinite_examples: Tensor


class PrivateOptimizer:
    """Normalised differentially private updates (Algorithm 1 of the paper).

    A step sums the clipped gradients of all micro-batches in float64, adds noise from
    N(0, noise_multiplier^2 I) once, and divides by the *expected* batch size. A torch optimizer takes
    the result in the parameters' dtype. The step of an empty batch is pure noise.

    In a process group of torch.distributed, all processes call `step` with the same micro-batches. Each
    computes every k-th of them, and all take the same step: that of one process, up to the order of sums.

    >>> from dpsweep import FlatClipping, GaussianNoise, make_engine, new_secret
    >>> model = torch.nn.Linear(2, 3)
    >>> optimizer = PrivateOptimizer(
    ...     torch.optim.SGD(model.parameters(), lr=0.1),
    ...     make_engine("auto", model),
    ...     FlatClipping(1.0),
    ...     noise_multiplier=1.0,
    ...     expected_batch_size=4,
    ...     noise=GaussianNoise("mine", "noise", secret=new_secret()),
    ... )
    >>> inputs, labels = torch.randn(3, 2), torch.tensor([0, 1, 2])
    >>> statistics = optimizer.step([(inputs, labels, torch.ones(3, dtype=torch.bool))])
    >>> int(statistics.sampled_examples)
    3
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        engine: GradientEngine,
        clipping: Clipping,
        *,
        noise_multiplier: float,
        expected_batch_size: int,
        noise: GaussianNoise,
    ):
        """Check the settings of a private optimizer.

        Args:
            optimizer: over exactly the trainable parameters of the engine's model.
            engine: computes the per-example gradients.
            clipping: scales these gradients.
            noise_multiplier: standard deviation of the noise; 0 for training without privacy.
            expected_batch_size: sampling rate times training examples.
            noise: the noise stream. Nothing else may draw from it: the difference of two updates with
                the same noise has no noise.

        Raises:
            OptimizerError: the optimizer is none of torch, or needs more than one gradient in a step.
            ValueError: the optimizer has other parameters than the engine, there is no clipping rule, or
                noise without clipping, a number is out of range, or several processes use Opacus.
        """
        if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, _UNFIT):
            raise OptimizerError(
                f"optimizer: found {type(optimizer).__name__}; allowed: {ONE_GRADIENT}"
            )
        if not isinstance(clipping, Clipping):
            raise ValueError(
                f"clipping: found {clipping!r}; allowed: a rule, such as dpsweep.FlatClipping(1.0)"
            )
        noise_multiplier = real("noise_multiplier", noise_multiplier, least=0)
        real("expected_batch_size", expected_batch_size, least=1)
        if noise_multiplier > 0 and not math.isfinite(clipping.sensitivity):
            raise ValueError(
                f"noise multiplier {noise_multiplier} without clipping gives no privacy: "
                "choose a clipping rule, or noise multiplier 0"
            )
        if processes.count() > 1 and "opacus" in getattr(engine, "names", ()):
            raise ValueError(
                "engine opacus: a batch is not divided among processes with it, because it is there for "
                "comparison; allowed: another engine, or one process"
            )
        self.optimizer = optimizer
        self.engine = engine
        self.clipping = clipping
        self.noise_multiplier = noise_multiplier
        self.expected_batch_size = expected_batch_size
        self._noise = noise
        self._steps = 0
        self._compared = False
        # A copy of this optimizer has another one, and is another user of the noise.
        self._user = object()
        self._refuse_other_parameters()

    @property
    def steps(self) -> int:
        """The number of steps so far."""
        return self._steps

    def step(self, microbatches: Iterable[MicroBatch]) -> StepStatistics:
        """Take one step from the micro-batches ``(inputs, labels, mask)`` of one sampled batch.

        A micro-batch may have a fourth element, the number of each row's unit, as
        `dpsweep.microbatches` yields it; numbers below 0 are of padding.

        A step that runs out of memory changes neither the parameters nor the optimizer's state. Calling
        it again repeats it with the same noise. A step that is interrupted (Ctrl-C) while the parameters
        change counts, and its noise is not used again.

        Raises:
            ValueError: the optimizer does not hold exactly the trainable parameters, another one draws
                from its noise, the noise of this step was added to another sum, a micro-batch has other
                parts, or a unit has rows in two micro-batches.
            UnsupportedModelError: the trainable parameters have changed, or a pass stores something
                about the examples; nothing has been updated.
            ProcessError: another process has failed, or has other parameters, noise or settings.
        """
        self._refuse_other_parameters()
        self._noise.reserve(self._user)
        if not self._compared:
            self._require_equal_processes()
        parameters = self.engine.parameters
        total, statistics = self._clipped_sum(microbatches)
        step = self._steps
        if self.noise_multiplier > 0:
            self._noise.add_to(total, step, self.noise_multiplier)
        total /= self.expected_batch_size
        pieces = torch.split(total, [each.numel() for each in parameters.values()])
        for parameter, piece in zip(parameters.values(), pieces, strict=True):
            gradient = piece.view(parameter.shape).to(parameter.dtype)
            if not parameter.is_contiguous():  # fused optimizers need equal strides of both
                gradient = torch.empty_like(parameter).copy_(gradient)
            parameter.grad = gradient
        self._steps = step + 1
        try:
            self._take_step(first=step == 0)
        except Exception:
            self._steps = step
            self._noise.forget(step)
            raise
        return statistics

    def _clipped_sum(self, microbatches: Iterable[MicroBatch]) -> tuple[Tensor, StepStatistics]:
        """Return the sum of all clipped gradients as one float64 vector, and statistics; in all processes."""
        parameters = self.engine.parameters
        sizes = [each.numel() for each in parameters.values()]
        # The statistics and the number of units come last, because processes exchange one tensor faster
        # than two.
        more = len(StepStatistics._fields) + 1
        buffer = torch.zeros(
            sum(sizes) + more,
            # In float32, the error of a long sum would exceed the contribution of one example.
            dtype=torch.float64,
            device=next(iter(parameters.values())).device,
        )
        *flat, numbers = torch.split(buffer, [*sizes, more])
        pieces = [
            piece.view(each.shape) for piece, each in zip(flat, parameters.values(), strict=True)
        ]
        seen: set[int] = set()
        with processes.all_or_none():
            for microbatch in processes.share(microbatches):
                if not isinstance(microbatch, tuple) or len(microbatch) not in (3, 4):
                    kind = type(microbatch).__name__
                    parts = f" of {len(microbatch)}" if isinstance(microbatch, tuple) else ""
                    raise ValueError(_PARTS.format(found=f"a {kind}{parts} in the list"))
                inputs, labels, mask, *units = microbatch
                counted = mask
                for ids in units:
                    _refuse_split(ids, seen)
                    counted = mask if (several := units_of(ids, mask)) is None else several.counted
                part = self.engine.clipped_sum(inputs, labels, mask, self.clipping, *units)
                torch._foreach_add_(pieces, [part.gradients[name] for name in parameters])
                clipped = self.clipping.clipped(part.norms)
                found = counted.sum(), part.norms.sum(), clipped.sum(), part.nonfinite.sum()
                numbers[:-1] += torch.stack([each.double() for each in found])
                del part  # frees memory for the next one, or for the noise
        if processes.count() > 1:
            numbers[-1] = len(seen)
            processes.add_up(buffer)
            if numbers[-1] > 0:
                everywhere = processes.joined(torch.tensor(sorted(seen), dtype=torch.int64))
                if len(set(everywhere.tolist())) < len(everywhere):
                    raise ValueError(_SPLIT.format(unit=int(everywhere.mode().values)))
        # A copy, because views would keep the whole sum in memory.
        sampled, norm_sum, clipped, nonfinite, _ = numbers.clone()
        statistics = StepStatistics(sampled.long(), norm_sum, clipped.long(), nonfinite.long())
        return buffer[:-more], statistics

    def _take_step(self, *, first: bool) -> None:
        """Take a step of the torch optimizer; if it runs out of memory, in no process."""
        if not first:
            self.optimizer.step()
            return
        # The only step that allocates the optimizer's state.
        parameters = self.engine.parameters.values()
        several = processes.count() > 1
        before = [each.detach().to("cpu", copy=True) for each in parameters] if several else []
        try:
            with processes.all_or_none():
                self.optimizer.step()
        except Exception:
            self.optimizer.state.clear()
            with torch.no_grad():
                for parameter, kept in zip(parameters, before, strict=several):
                    parameter.copy_(kept)
            raise

    def _require_equal_processes(self) -> None:
        """Raise ProcessError unless all processes have the same model, settings and streams."""
        if processes.count() > 1:
            processes.require_equal(
                f"before step {self._steps + 1}",
                {
                    "numbers of steps": self._steps,
                    "parameters": processes.digest(self.engine.parameters.values()),
                    "noise (draw one secret, and give it to all)": self._noise.identity,
                    "noise multipliers": self.noise_multiplier,
                    "batch sizes": self.expected_batch_size,
                    "clipping rules": str(self.clipping),
                },
            )
        self._compared = True

    def _refuse_other_parameters(self) -> None:
        """Raise ValueError unless the optimizer holds exactly the trainable parameters."""
        held = {id(each) for group in self.optimizer.param_groups for each in group["params"]}
        parameters = self.engine.parameters
        trained = {name: id(each) for name, each in parameters.items() if each.requires_grad}
        missing = [name for name, each in trained.items() if each not in held]
        if missing or len(held) != len(trained):
            raise ValueError(
                "the optimizer must hold exactly the model's trainable parameters: "
                f"it lacks {shorten(missing)} and has {len(held) + len(missing) - len(trained)} that do "
                "not train; after a change of what trains call use_optimizer of dpsweep.PrivateTraining"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return the state for resuming: that of the torch optimizer, and the number of steps."""
        return {"optimizer": self.optimizer.state_dict(), "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict()``: all later steps equal those of an uninterrupted run.

        The optimizer that has drawn from the noise before, if any, can no longer do so.

        Raises:
            DoesNotFitError: the state is valid, but does not fit in the device's memory.
        """
        steps = int(state["steps"])
        try:
            self.optimizer.load_state_dict(state["optimizer"])
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise DoesNotFitError(
                f"the optimizer's state does not fit on the device ({first_line(error)}); look whether "
                "other programs use it, and call again: the trial goes on from its checkpoint"
            ) from error
        self._steps = steps
        self._compared = False
        self._noise.reserve(self._user, move=True)


def _refuse_split(units: Any, seen: set[int]) -> None:
    """Refuse a unit that an earlier micro-batch of the step has; add those of this one."""
    found = {unit for unit in np.unique(units).tolist() if unit >= 0}
    if both := found & seen:
        raise ValueError(_SPLIT.format(unit=min(both)))
    seen |= found


class OptimizerError(DpsweepError, ValueError):
    """An optimizer that torch does not have, with wrong arguments, or unfit for private steps."""


def make_optimizer(
    section: OptimizerSection,
    parameters: Iterable[nn.Parameter],
    learning_rate: float,
    noise_deviation: float,
) -> torch.optim.Optimizer:
    """Construct an optimizer.

    Args:
        section: of a study.
        parameters: to train.
        learning_rate: of a step with schedule factor 1.
        noise_deviation: sigma / B, the standard deviation of each number of a noised gradient.

    Raises:
        OptimizerError: torch has no such class, or refuses the arguments.
    """
    constructor, arguments = section.torch_class()
    arguments["lr"] = learning_rate
    if section.needs_noise_variance:
        arguments["noise_variance"] = noise_deviation**2
    try:
        made: torch.optim.Optimizer = resolve_name(constructor)(parameters, **arguments)
    except Exception as error:  # classes raise all kinds of exceptions for wrong arguments
        raise OptimizerError(f"{section.full_title()}: torch refuses it: {brief(error)}") from None
    return made


def mistaken_optimizers(study: Study) -> Iterable[str]:
    """Try a step on the CPU with every optimizer of a study's section; yield a line for each that fails."""
    for name, section in study.optimizers.items():
        parameter, tried = nn.Parameter(torch.zeros(2)), section
        if isinstance(section, TorchOptimizer) and section.arguments.get("capturable"):
            # torch allows it on GPUs only, of which this machine may have none.
            arguments = section.arguments | {"capturable": False}
            tried = section.model_copy(update={"arguments": arguments})
        try:
            optimizer = make_optimizer(tried, [parameter], 0.1, 0.1)
            parameter.grad = torch.ones(2)
            optimizer.step()
        except Exception as error:
            yield f"optimizers.{name}: {brief(error)}"


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of an optimizer's next step."""
    for group in optimizer.param_groups:
        group["lr"] = rate


class RunningAverage:
    """The average of parameters over steps, in float64.

    Args:
        section: of the optimizer; without an average, nothing is kept.
        steps: T.
        values: the average so far by name, from the attribute `values`; empty at the start.
    """

    def __init__(self, section: OptimizerSection, steps: int, values: dict[str, Tensor]) -> None:
        self._average, self._steps = section.average, steps
        self.values = values

    def update(self, step: int, parameters: Mapping[str, nn.Parameter]) -> None:
        """Add the parameters after a step (from 1) to the average."""
        if self._average is None:
            return
        weight = self._average.weight(step, self._steps)
        for name, parameter in parameters.items():
            new = parameter.detach().double()
            if name in self.values:
                self.values[name].lerp_(new, weight)
            else:
                self.values[name] = new.clone()


class AdamBC(torch.optim.Optimizer):
    """Adam that subtracts the known noise variance from its second moment.

    The second moment of a noised gradient is that of the gradient, plus the variance of the noise. Adam
    divides by its root, so noise shortens all steps alike. With the bias-corrected moments m and v of
    Adam, a step here is ``lr m / (sqrt(max(v - variance, floor variance)) + eps)``.

    >>> weight = torch.nn.Parameter(torch.zeros(1))
    >>> optimizer = AdamBC([weight], lr=1.0, noise_variance=3.0, eps=1e-12)
    >>> weight.grad = torch.tensor([4.0])  # 4 / sqrt(16 - 3)
    >>> optimizer.step()
    >>> round(float(weight.detach()), 3)
    -1.109

    Args:
        parameters: to train.
        lr: learning rate.
        noise_variance: of each number of a gradient. For `dpsweep.PrivateOptimizer` it is (sigma / B)^2
            for any C, because it divides gradients by C; for others it is (sigma C / B)^2.
        betas: decay of the first and of the second moment.
        eps: added to the root of the second moment.
        floor: the smallest second moment, in units of the noise variance.
    """

    def __init__(
        self,
        parameters: Iterable[Parameter],
        lr: float,
        *,
        noise_variance: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        floor: float = 1.0,
    ) -> None:
        defaults = {
            "lr": lr, "noise_variance": noise_variance, "betas": betas, "eps": eps, "floor": floor,
            "steps": 0,
        }  # fmt: skip
        super().__init__(parameters, defaults)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Take one step; there is no closure, because private gradients are computed once."""
        for group in self.param_groups:
            parameters = [each for each in group["params"] if each.grad is not None]
            if not parameters:
                continue
            gradients: list[Any] = [each.grad for each in parameters]
            for each in parameters:
                if not self.state[each]:
                    self.state[each].update(
                        first=torch.zeros_like(each), second=torch.zeros_like(each)
                    )
            first = [self.state[each]["first"] for each in parameters]
            second = [self.state[each]["second"] for each in parameters]
            beta1, beta2 = group["betas"]
            # Allocate all memory of the step here, before any state changes.
            root = torch._foreach_mul(second, beta2)
            torch._foreach_addcmul_(root, gradients, gradients, 1 - beta2)
            steps = group["steps"] + 1
            torch._foreach_lerp_(first, gradients, 1 - beta1)
            torch._foreach_copy_(second, root)
            variance = group["noise_variance"]
            torch._foreach_div_(root, 1 - beta2**steps)
            torch._foreach_sub_(root, variance)
            torch._foreach_clamp_min_(root, group["floor"] * variance)
            torch._foreach_sqrt_(root)
            torch._foreach_add_(root, group["eps"])
            rate = group["lr"] / (1 - beta1**steps)
            torch._foreach_addcdiv_(parameters, first, root, -rate)
            group["steps"] = steps
