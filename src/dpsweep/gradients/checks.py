"""Checks of the network, its state and the engine before the first step."""

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dpsweep.base.errors import DpsweepError
from dpsweep.gradients.data_dependence import data_dependent
from dpsweep.gradients.engine import (
    GradientEngine,
    GradientSum,
    example_losses,
    gradients_of,
    is_out_of_memory,
)
from dpsweep.gradients.engines import LoopEngine
from dpsweep.gradients.precision import full_precision
from dpsweep.gradients.refusals import (
    BatchError,
    UnsupportedModelError,
    check_batch,
    check_labels,
    check_outputs,
    refuse_batch_statistics,
    unreadable,
    without_influence,
)
from dpsweep.gradients.state import (
    COUNT,
    Watch,
    check_passes,
    copy_of,
    drawn,
    from_batch,
    mixes,
    no_warnings,
    same_draws,
)
from dpsweep.study.clipping import Clipping, NoClipping
from dpsweep.study.messages import shorten

log = logging.getLogger(__name__)

# Largest rounding errors compared with the loop, relative to the norm of a parameter's gradient, and to
# the norm of the whole gradient (some gradients are zero, such as of the bias of attention keys).
_RELATIVE, _ABSOLUTE = 1e-2, 1e-5
_SLOW = ("vmap", "loop")
_LONGEST_REASON = 200


class ValidatingEngine(GradientEngine):
    """The first of some engines that gives the gradients of the loop for this model.

    The first call tests copies of the model with made-up examples like those of its batch:

    - A pass must not store data of its examples (`check_passes`). This is tested again when a layer is
      replaced or changes between train and eval mode. Every later call checks for written tensors.
    - The engine must give the gradients of the loop: for each of three examples and each parameter, with
      parameters that are not zero. So an engine that mixes the examples of an unusual model, or misses a
      parameter, is not used. The choice depends only on the model.
    - Only engines that compute each example alone compute networks whose operations choose, order or merge
      rows by their content (`data_dependent`). A parameter that no made-up example reaches is an error in
      other networks; in these, another example may reach it.
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
            engines: by name; the first one that passes the comparison is used. ``loop`` alone is not
                compared.
            options: of the engines.

        Raises:
            UnsupportedModelError: see `check_model`.
        """
        super().__init__(model, head_parameters, **options)
        self.names = tuple(engines)
        self._engines = engines
        self._options = options
        self._chosen: tuple[str, GradientEngine] | None = None
        self._classes = 0
        # The layers and their modes at the last test.
        self._layers: list[tuple[nn.Module, bool]] | None = None
        self._forms = {name: _form(each) for name, each in self.parameters.items()}

    def clipped_sum(
        self, inputs: Tensor, labels: Tensor, mask: Tensor, clipping: Clipping, units: Any = None
    ) -> GradientSum:
        """See ``GradientEngine``."""
        with self._watched(inputs, labels, mask) as engine:
            if engine is not None:
                batch = inputs.detach(), labels.where(mask, 0), mask, clipping
                return engine.clipped_sum(*batch, units)
        zeros = {name: torch.zeros_like(each) for name, each in self.parameters.items()}
        return GradientSum(zeros, _zeros(inputs), _zeros(inputs), mask)

    def norms(
        self, inputs: Tensor, labels: Tensor, mask: Tensor, units: Any = None
    ) -> tuple[Tensor, Tensor]:
        """See ``GradientEngine``."""
        with self._watched(inputs, labels, mask) as engine:
            if engine is not None:
                return engine.norms(inputs.detach(), labels.where(mask, 0), mask, units)
        return _zeros(inputs), _zeros(inputs)

    def gradients(self, inputs: Tensor, labels: Tensor, units: Any = None) -> tuple[Tensor, Tensor]:
        """See ``GradientEngine``."""
        mask = torch.ones(len(labels), dtype=torch.bool, device=inputs.device)
        with self._watched(inputs, labels, mask) as engine:
            if engine is not None:
                return engine.gradients(inputs.detach(), labels, units)
        size = sum(each.numel() for each in self.parameters.values())
        return torch.zeros(0, size, device=inputs.device), mask

    def choose(self, inputs: Tensor) -> tuple[str, GradientEngine]:
        """Choose an engine for inputs like these; return its name and the engine.

        Raises:
            UnsupportedModelError: no engine can compute the model.
        """
        layers = [(each, each.training) for each in self.model.modules()]
        if layers != self._layers or self._chosen is None:
            refuse_batch_statistics(self.model)
            examples, others, unused = self._check_passes(inputs)
            changed = _with_random_values(self.model)
            _refuse_mixing(changed, examples, others)
            with full_precision(), torch.enable_grad(), no_warnings(), same_draws(inputs.device):
                operation = data_dependent(changed, examples)
            if unused and operation is None:
                raise without_influence(unused)
            self._chosen = self._compare(changed, examples, operation)
            self._layers = layers
        return self._chosen

    @contextmanager
    def _watched(
        self, inputs: Tensor, labels: Tensor, mask: Tensor
    ) -> Iterator[GradientEngine | None]:
        """Yield the engine for a micro-batch, None if it is empty; refuse tensors written meanwhile.

        Raises:
            BatchError: the micro-batch is invalid.
            UnsupportedModelError: the trainable parameters have changed, or see `choose`.
        """
        self._refuse_changes()
        check_batch(inputs, labels, mask, next(iter(self.parameters.values())).device)
        if not len(labels):
            yield None
            return
        first = self._layers is None
        _, engine = self.choose(inputs)
        # On a GPU, this check would wait for the device.
        if first or labels.device.type == "cpu":
            check_labels(labels, mask, self._classes)
        watch = Watch(self.model)
        yield engine
        watch.refuse()

    def _refuse_changes(self) -> None:
        """Refuse a model with other trainable parameters than when the engine was made.

        Raises:
            UnsupportedModelError: naming the parameters.
        """
        now = {name: each for name, each in self.model.named_parameters() if each.requires_grad}
        changed = [
            name
            for name in dict.fromkeys((*self.parameters, *now))
            if self.parameters.get(name) is not now.get(name)
            or _form(now[name]) != self._forms[name]
        ]
        if changed:
            raise UnsupportedModelError(
                f"what trains has changed since the engine was made: {shorten(map(repr, changed))} no longer "
                "trains, is new, or has another shape, dtype or device; after such a change make the engine "
                "again, or call use_optimizer of dpsweep.PrivateTraining"
            )

    @full_precision()
    @torch.enable_grad()
    def _check_passes(self, inputs: Tensor) -> tuple[Tensor, Tensor, set[str]]:
        """Check passes of made-up examples.

        Returns:
            Examples that the network can read, others, and the parameters without influence on them.
        """
        unused = set(self.parameters)

        def run(model: nn.Module, examples: Tensor) -> Tensor:
            found: list[Tensor] = []

            def logits(x: Tensor) -> Tensor:
                try:
                    outputs = model(x)
                except Exception as error:  # of any kind: networks check their inputs in many ways
                    if is_out_of_memory(error) or isinstance(error, DpsweepError):
                        raise
                    raise unreadable(model, x, _one_line(error)) from error
                found.append(check_outputs(outputs, len(x)))
                return found[0]

            labels = _made_up_labels(examples)
            loss = example_losses(logits, examples, labels, self._autocast).sum()
            trained = {n: each for n, each in model.named_parameters() if each.requires_grad}
            gradients = gradients_of(loss, trained.values())
            unused.difference_update(
                name for name, each in zip(trained, gradients, strict=True) if each is not None
            )
            return found[0].detach()

        made = [drawn(inputs), *([from_batch(inputs)] if inputs.is_floating_point() else [])]
        for examples in made:
            try:
                outputs = check_passes(self.model, run, *examples)
            except BatchError:
                if examples is made[-1]:
                    raise
                continue
            if outputs.isfinite().all():
                break
        self._classes = outputs.shape[1]
        return *examples, unused

    @full_precision()
    def _compare(
        self,
        fresh: nn.Module,
        examples: Tensor,
        operation: str | None,
    ) -> tuple[str, GradientEngine]:
        if self._engines.keys() == {"loop"}:
            return "loop", LoopEngine(self.model, self._head, **self._options)
        batch = examples, _made_up_labels(examples)
        _refuse_random(fresh, examples)
        try:
            wanted = LoopEngine(copy_of(fresh), self._head).alone(*batch)
        except Exception as error:  # of any kind, because only a batch of one fails
            if is_out_of_memory(error) or isinstance(error, DpsweepError):
                raise
            raise UnsupportedModelError(
                f"{type(self.model).__name__} cannot compute one example alone ({_one_line(error)}), so "
                "that examples have no gradients of their own"
            ) from error
        because: dict[str, str] = {}
        for name, kind in self._engines.items():
            # A copy, because an engine that fails halfway may leave the model changed.
            model = copy_of(fresh)
            try:
                if operation is not None and not kind.by_example:
                    found = (
                        f"{operation}() chooses, orders or merges rows of a batch by their content"
                    )
                    raise UnsupportedModelError(
                        f"{found}, and engine {name!r} assigns rows to examples by their place; use engine "
                        "auto",
                        because=found,
                    )
                difference = _difference(_batched(kind(model, self._head), *batch), wanted)
                if difference is not None:
                    raise UnsupportedModelError(
                        f"engine {name!r} does not give the gradient of parameter {difference!r} that the "
                        "loop over examples gives; use engine auto",
                        because=f"the gradient of parameter {difference!r} differs from the loop's",
                    )
                if self._autocast is not None:
                    mask = torch.ones_like(batch[1], dtype=torch.bool)
                    kind(model, self._head, autocast=self._autocast).norms(*batch, mask)
                engine = kind(self.model, self._head, **self._options)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                # The next engine may support what this one does not.
                failure = error
                because[name] = getattr(error, "because", "") or _one_line(error)
                continue
            if name in _SLOW and because:
                log.warning("engine %r, which is slow, because %s", name, because["bookkeeping"])
            elif because:
                log.info("engine %r", name)
            return name, engine
        if isinstance(failure, UnsupportedModelError):
            raise failure
        raise UnsupportedModelError(
            f"engine {name!r} cannot compute {type(self.model).__name__} ({_one_line(failure)}); engine auto "
            "chooses one that can, if there is one"
        ) from failure


def _with_random_values(model: nn.Module) -> nn.Module:
    """Return a copy of a model with random trainable parameters.

    Heads and adapters start at zero, which makes the gradients of the layers before them zero; and a
    diverged model has no gradients to compare.
    """
    changed = copy_of(model)
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


def _made_up_labels(inputs: Tensor) -> Tensor:
    return torch.zeros(len(inputs), dtype=torch.int64, device=inputs.device)


def _zeros(inputs: Tensor) -> Tensor:
    return torch.zeros(len(inputs), device=inputs.device)


def _one_line(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:_LONGEST_REASON]


def _form(parameter: Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return parameter.shape, parameter.dtype, parameter.device


def _batched(engine: GradientEngine, inputs: Tensor, labels: Tensor) -> list[GradientSum]:
    """Return the gradient of each example, computed in a batch with the others."""
    masks = torch.eye(COUNT, dtype=torch.bool, device=labels.device)
    return [engine.clipped_sum(inputs, labels, mask, NoClipping()) for mask in masks]


def _difference(found: list[GradientSum], wanted: list[GradientSum]) -> str | None:
    """Return the name of a parameter whose gradients differ, None if all agree."""
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


def _refuse_random(model: nn.Module, inputs: Tensor) -> None:
    with torch.no_grad():
        outputs = []
        for seed in (0, 1):
            with same_draws(inputs.device, seed):
                outputs.append(model(inputs))
    first, second = outputs
    if torch.allclose(first, second, rtol=1e-4, atol=1e-4, equal_nan=True):
        return
    raise UnsupportedModelError(
        f"{type(model).__name__} draws random numbers, so that no engine can be compared with the loop over "
        "examples: call model.eval(), which switches dropout off, or choose engine 'loop', which is slow"
    )


@full_precision()
def _refuse_mixing(model: nn.Module, inputs: Tensor, others: Tensor) -> None:
    @torch.no_grad()
    def run(batch: Tensor) -> Tensor:
        with same_draws(batch.device):
            outputs: Tensor = model(batch)
        return outputs

    if mixes(run, inputs, others):
        raise UnsupportedModelError(
            f"{type(model).__name__} mixes the examples of a batch: its output for one depends on the "
            "others, so examples have no gradients of their own"
        )
