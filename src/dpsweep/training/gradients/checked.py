"""No engine computes a step before it has computed what the loop over single examples does."""

import copy
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dpsweep.study.clipping import Clipping, NoClipping
from dpsweep.training.device import full_precision
from dpsweep.training.gradients.engine import GradientEngine, GradientSum, example_losses
from dpsweep.training.gradients.loop import LoopEngine
from dpsweep.training.gradients.refusals import UnsupportedModelError
from dpsweep.training.physical import is_out_of_memory

log = logging.getLogger(__name__)

# How many examples are compared.
_EXAMPLES = 3
# Differences to the loop that are rounding: as parts of the norm of a parameter's gradient, and of
# the whole gradient (some parameters have none, such as the bias of attention keys).
_RELATIVE, _ABSOLUTE = 1e-2, 1e-5
# How many examples are timed, and engines that are slow.
_TIMED = 8
_SLOW = ("vmap", "loop")


class CheckedEngine(GradientEngine):
    """The first of some engines that gives the gradients of the loop, with this very model.

    The comparison comes with the first call: three examples, one by one and parameter by parameter,
    on a copy of the model in which no parameter is zero. So an engine that mixes examples in a model
    of a new kind, or misses a parameter, is not used. The choice depends on nothing but the model.
    """

    def __init__(
        self,
        model: nn.Module,
        head_parameters: frozenset[str],
        engines: Mapping[str, type[GradientEngine]],
        **options: Any,
    ):
        """Prepare a model.

        Args:
            model: see ``make_engine``.
            head_parameters: see ``make_engine``.
            engines: by name; the first one that can is taken.
            options: what engines are made with.

        Raises:
            UnsupportedModelError: see `check_model`.
        """
        super().__init__(model, head_parameters, **options)
        self._engines = engines
        self._options = options
        self._chosen: tuple[str, GradientEngine] | None = None

    def clipped_sum(
        self, inputs: Tensor, labels: Tensor, mask: Tensor, clipping: Clipping
    ) -> GradientSum:
        """See ``GradientEngine``."""
        _, engine = self.choose(inputs, labels)
        return engine.clipped_sum(inputs, labels, mask, clipping)

    def norms(self, inputs: Tensor, labels: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """See ``GradientEngine``."""
        _, engine = self.choose(inputs, labels)
        return engine.norms(inputs, labels, mask)

    def gradients(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """See ``GradientEngine``."""
        _, engine = self.choose(inputs, labels)
        return engine.gradients(inputs, labels)

    def choose(self, inputs: Tensor, labels: Tensor) -> tuple[str, GradientEngine]:
        """Return the engine that is taken, and its name.

        Raises:
            UnsupportedModelError: none can compute the model.
        """
        if self._chosen is None:
            self._chosen = self._compare(inputs, labels)
        return self._chosen

    @full_precision()
    def _compare(self, inputs: Tensor, labels: Tensor) -> tuple[str, GradientEngine]:
        model = _with_other_values(self.model)
        batch = _example_batch(inputs, labels)
        wanted = LoopEngine(model, self._head).alone(*batch)
        _refuse_mixing(model, *batch, wanted)
        reasons: dict[str, str] = {}
        for name, kind in self._engines.items():
            try:
                difference = _difference(_among_others(kind(model, self._head), *batch), wanted)
                engine = kind(self.model, self._head, **self._options)
                if self._autocast is not None and difference is None:
                    engine.norms(inputs, labels, torch.ones_like(labels, dtype=torch.bool))
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                # Whatever else an engine stumbles over, the next one may know it.
                reasons[name] = " ".join(str(error).split()) or type(error).__name__
                continue
            if difference is None:
                if name in _SLOW and reasons:
                    self._tell_cost(name, engine, reasons, inputs[:_TIMED], labels[:_TIMED])
                elif reasons:
                    log.info("engine %r", name)
                return name, engine
            reasons[name] = (
                f"engine {name!r} does not give the gradient of parameter {difference!r} that an "
                "example by itself has; engine auto takes one that does"
            )
        raise UnsupportedModelError("; ".join(reasons.values()))

    def _tell_cost(
        self,
        name: str,
        engine: GradientEngine,
        reasons: Mapping[str, str],
        inputs: Tensor,
        labels: Tensor,
    ) -> None:
        """Warn that an engine was taken that is slow."""
        mask = torch.ones_like(labels, dtype=torch.bool)
        private = _seconds(
            lambda: engine.clipped_sum(inputs, labels, mask, NoClipping()), inputs.device
        )
        plain = _seconds(lambda: self._plain_gradients(inputs, labels), inputs.device)
        log.warning(
            "engine %r: a step takes %.1f times as long as one without privacy (measured on %d "
            "examples), because: %s",
            name,
            private / plain,
            len(labels),
            "; ".join(reasons.values()),
        )

    def _plain_gradients(self, inputs: Tensor, labels: Tensor) -> None:
        with torch.enable_grad():
            losses = example_losses(self.model, inputs, labels, self._autocast)
        torch.autograd.grad(losses.sum(), list(self.parameters.values()))


def _with_other_values(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose trainable parameters are random.

    Heads and adapters start at zero, and then nothing behind them has a gradient; and a model that
    diverged has no gradients to compare.
    """
    changed = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in changed.parameters():
            if parameter.requires_grad:
                noise = torch.randn(parameter.shape, generator=generator)
                if noise.dim() > 1:
                    noise /= math.sqrt(noise[0].numel())
                else:
                    noise = 0.5 + 0.25 * noise
                parameter.copy_(noise)
    return changed


def _example_batch(inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return different examples like those of a batch."""
    if inputs.is_floating_point():
        # Not the seed of the parameters: examples that equal them saturate the softmax, and what is left
        # of their gradients is rounding.
        generator = torch.Generator().manual_seed(1)
        noise = torch.randn((_EXAMPLES, *inputs.shape[1:]), generator=generator)
        examples = noise.to(inputs.device, inputs.dtype)
    else:
        examples = torch.stack([inputs[0].roll(places, dims=-1) for places in range(_EXAMPLES)])
    return examples, labels[:1].expand(_EXAMPLES)


def _among_others(engine: GradientEngine, inputs: Tensor, labels: Tensor) -> list[GradientSum]:
    """Return the gradient of every example, from a batch with the others."""
    masks = torch.eye(_EXAMPLES, dtype=torch.bool, device=labels.device)
    return [engine.clipped_sum(inputs, labels, mask, NoClipping()) for mask in masks]


def _difference(found: list[GradientSum], wanted: list[GradientSum]) -> str | None:
    """Return the name of a parameter with another gradient, if there is one."""
    for ours, theirs in zip(found, wanted, strict=True):
        whole = theirs.norms.sum()
        errors = {
            name: (ours.gradients[name] - gradient).norm()
            for name, gradient in theirs.gradients.items()
        }
        for name, error in errors.items():
            if not error <= _RELATIVE * theirs.gradients[name].norm() + _ABSOLUTE * whole:
                return name
        if not (ours.norms.sum() - whole).abs() <= _RELATIVE * whole:
            return max(errors, key=lambda name: float(errors[name]))
    return None


def _refuse_mixing(
    model: nn.Module, inputs: Tensor, labels: Tensor, one_by_one: list[GradientSum]
) -> None:
    with torch.no_grad():
        together = example_losses(model, inputs, labels)
    losses = torch.cat([each.losses for each in one_by_one])
    if not torch.allclose(together, losses, rtol=1e-2, atol=1e-2):
        raise UnsupportedModelError(
            f"{type(model).__name__} mixes the examples of a batch: the loss of one changes with "
            "the others, so no example has a gradient of its own"
        )


def _seconds(run: Callable[[], object], device: torch.device) -> float:
    """Time a second run; the first one may set things up."""
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started
