"""Private steps: any torch optimizer on clipped, summed and noised gradients."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dpsweep.base.numbers import real
from dpsweep.gradients import GradientEngine
from dpsweep.gradients.engine import first_line, is_out_of_memory
from dpsweep.gradients.units import units_of
from dpsweep.study.clipping import Clipping
from dpsweep.study.messages import shorten
from dpsweep.training import processes
from dpsweep.training.physical import DoesNotFitError
from dpsweep.training.randomness import GaussianNoise, Indices

MicroBatch = tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Indices]
"""Inputs, labels, mask and, with units, the number of each row's unit.

The mask is false in rows that do not count.
"""

_SPLIT = (
    "units: found rows of unit {unit} in two micro-batches of a step, so that it would be clipped twice; "
    "allowed: whole units, as dpsweep.microbatches puts them"
)
_UNFIT = (torch.optim.LBFGS, torch.optim.SparseAdam)


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
            ValueError: the optimizer has other parameters than the engine, there is noise
                without clipping, a number is out of range, or several processes use Opacus.
        """
        if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, _UNFIT):
            raise ValueError(
                f"optimizer: found {type(optimizer).__name__}; allowed: an optimizer of torch that takes "
                "one gradient in each step, as SGD and Adam (LBFGS computes losses again, SparseAdam needs "
                "sparse gradients, and noise makes them dense)"
            )
        noise_multiplier = real("noise_multiplier", noise_multiplier)
        real("expected_batch_size", expected_batch_size)
        if not 0 <= noise_multiplier < math.inf:
            raise ValueError(f"noise multiplier {noise_multiplier} must be finite and at least 0")
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
        if expected_batch_size < 1:
            raise ValueError(f"expected batch size {expected_batch_size} must be at least 1")
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
        reference = next(iter(parameters.values()))
        sizes = [each.numel() for each in parameters.values()]
        # With room for the statistics and the number of units, because processes exchange one tensor
        # faster than two.
        more = len(StepStatistics._fields) + 1
        buffer = torch.zeros(
            sum(sizes) + more,
            # In float32, the error of a long sum would exceed the contribution of one example.
            dtype=torch.float64,
            device=reference.device,
        )
        *flat, room = torch.split(buffer, [*sizes, more])
        pieces = [
            piece.view(each.shape) for piece, each in zip(flat, parameters.values(), strict=True)
        ]
        count = torch.zeros((), dtype=torch.int64, device=reference.device)
        statistics = StepStatistics(count, buffer.new_zeros(()), count, count)
        seen: set[int] = set()
        with processes.all_or_none():
            for microbatch in processes.share(microbatches):
                if not isinstance(microbatch, tuple) or len(microbatch) not in (3, 4):
                    raise ValueError(
                        f"a step: found a {type(microbatch).__name__} in the list; expected tuples (inputs, "
                        "labels, mask), as `dpsweep.microbatches` yields them"
                    )
                inputs, labels, mask, *units = microbatch
                counted = mask
                for ids in units:
                    _refuse_split(ids, seen)
                    counted = mask if (several := units_of(ids, mask)) is None else several.counted
                part = self.engine.clipped_sum(inputs, labels, mask, self.clipping, *units)
                torch._foreach_add_(pieces, [part.gradients[name] for name in parameters])
                clipped = self.clipping.clipped(part.norms)
                found = counted.sum(), part.norms.sum(), clipped.sum(), part.nonfinite.sum()
                statistics = StepStatistics(
                    *(a + b for a, b in zip(statistics, found, strict=True))
                )
                del part  # frees memory for the next one, or for the noise
        if processes.count() > 1:
            units_here = count.new_tensor(len(seen))
            torch.stack([each.double() for each in (*statistics, units_here)], out=room)
            processes.add_up(buffer)
            if room[-1] > 0:
                everywhere = processes.joined(torch.tensor(sorted(seen), dtype=torch.int64))
                if len(set(everywhere.tolist())) < len(everywhere):
                    raise ValueError(_SPLIT.format(unit=int(everywhere.mode().values)))
            statistics = StepStatistics(
                *(all_.to(each.dtype) for all_, each in zip(room[:-1], statistics, strict=True))
            )
        return buffer[: sum(sizes)], statistics

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
        missing = [name for name, each in parameters.items() if id(each) not in held]
        if missing or len(held) != len(parameters):
            raise ValueError(
                "the optimizer must hold exactly the model's trainable parameters: "
                f"it lacks {shorten(missing)} and has {len(held) + len(missing) - len(parameters)} that do "
                "not train"
            )
        if frozen := [name for name, each in parameters.items() if not each.requires_grad]:
            raise ValueError(
                f"what trains has changed since the engine was made: {shorten(map(repr, frozen))} no longer "
                "trains; after such a change call use_optimizer of dpsweep.PrivateTraining"
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
