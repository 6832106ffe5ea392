"""The checks before the first step: made-up examples pass through copies of the network.

They show whether a network stores data of its examples or mixes them, and which engine gives its gradients.

Only the sum of the gradients gets noise. Other data that a pass writes do not: running means, counters,
rows of an embedding that are scaled to a largest norm, weights that the first batch determines, or the
last batch in an attribute. `check_passes` looks for such data before the first step, on a copy. `Watch`
looks for them in every later call.
"""

import copy
import inspect
import logging
import math
import random
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpsweep.base.errors import DpsweepError
from dpsweep.gradients import refusals
from dpsweep.gradients.data_dependence import data_dependent
from dpsweep.gradients.engines import (
    GradientEngine,
    GradientSum,
    LoopEngine,
    Rows,
    example_losses,
    full_precision,
    gradients_of,
    is_out_of_memory,
)
from dpsweep.gradients.refusals import BatchError, UnsupportedModelError
from dpsweep.study.clipping import Clipping, NoClipping
from dpsweep.study.messages import brief, shorten

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

    def compute(self, rows: Rows, clipping: Clipping | None) -> GradientSum:
        """See ``GradientEngine``."""
        with self._watched(rows) as engine:
            if engine is not None:
                kept = rows.labels.where(rows.mask, 0)
                return engine.compute(
                    rows._replace(inputs=rows.inputs.detach(), labels=kept), clipping
                )
        zeros = {name: torch.zeros_like(each) for name, each in self.parameters.items()}
        nothing = torch.zeros(0, device=rows.inputs.device)
        return GradientSum(zeros, nothing, nothing, nothing, rows.mask)

    def gradients(self, inputs: Tensor, labels: Tensor, units: Any = None) -> tuple[Tensor, Tensor]:
        """See ``GradientEngine``."""
        mask = torch.ones(len(labels), dtype=torch.bool, device=inputs.device)
        with self._watched(Rows(inputs, labels, mask)) as engine:
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
            refusals.refuse_batch_statistics(self.model)
            examples, others, unused = self._check_passes(inputs)
            changed = _with_random_values(self.model)
            refuse_mixing(changed, examples, others)
            with full_precision(), torch.enable_grad(), no_warnings(), same_draws(inputs.device):
                operation = data_dependent(changed, examples)
            if unused and operation is None:
                raise refusals.without_influence(unused)
            self._chosen = self._compare(changed, examples, operation)
            self._layers = layers
        return self._chosen

    @contextmanager
    def _watched(self, rows: Rows) -> Iterator[GradientEngine | None]:
        """Yield the engine for a micro-batch, None if it is empty; refuse tensors written meanwhile.

        Raises:
            BatchError: the micro-batch is invalid.
            UnsupportedModelError: the trainable parameters have changed, or see `choose`.
        """
        self._refuse_changes()
        inputs, labels, mask, _ = rows
        refusals.check_batch(inputs, labels, mask)
        if not len(labels):
            yield None
            return
        first = self._layers is None
        _, engine = self.choose(inputs)
        # On a GPU, this check would wait for the device.
        if first or labels.device.type == "cpu":
            refusals.check_labels(labels, mask, self._classes)
        watch = Watch(self.model)
        yield engine
        if written := watch.written():
            raise _refusal(self.model, written)

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
                    raise BatchError(
                        f"inputs: found {refusals.described(x)}, which {type(model).__name__} cannot read: "
                        f"{_one_line(error)}"
                    ) from error
                found.append(refusals.check_outputs(outputs, len(x)))
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
@torch.no_grad()
def refuse_mixing(model: nn.Module, inputs: Tensor, others: Tensor) -> None:
    """Refuse a network whose output for an example depends on the others of its batch.

    All batches have one size, so kernels round in the same way.

    Args:
        model: it is not changed.
        inputs: of distinct examples.
        others: of as many other examples.

    Raises:
        UnsupportedModelError: the network mixes examples.
    """

    def run(batch: Tensor) -> Tensor:
        with same_draws(batch.device):
            outputs: Tensor = model(batch)
        return outputs

    together = run(inputs)
    error = torch.finfo(together.dtype).eps ** 0.75 * together.abs().nan_to_num(posinf=0).amax()
    for row, alone in enumerate(together):
        among = others.clone()
        among[row] = inputs[row]
        found = run(among)[row]
        if not torch.allclose(found, alone, rtol=0, atol=float(error), equal_nan=True):
            raise UnsupportedModelError(
                f"{type(model).__name__} mixes the examples of a batch: its output for one depends on the "
                "others, so examples have no gradients of their own; allowed: normalisation of each example "
                "by itself"
            )


Run = Callable[[nn.Module, Tensor], Tensor]
"""A pass through a network: forward, and backward if it trains; returns the outputs."""

Values = dict[str, Any]
"""Tensors and plain values by name."""

_Place = tuple[nn.Module, str]

# Attributes of every module: parameters, buffers and layers are compared separately.
_OF_EVERY_MODULE = frozenset(vars(nn.Module()))
_PLAIN = bool | int | float | complex | str | bytes | None
# Largest rounding error, in units of a tensor's precision times its largest number.
_ROUNDING = 16


@contextmanager
def no_warnings() -> Iterator[None]:
    """Hide warnings of test passes: the real passes will repeat them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@no_warnings()
def check_passes(model: nn.Module, run: Run, inputs: Tensor, others: Tensor) -> Tensor:
    """Refuse a network that keeps data from one pass to the next; the network does not change.

    Three passes go through a copy: with the inputs, with others, and with the inputs again. Parameters,
    buffers and the rest of ``state_dict()`` must not change. Other attributes must stay as after the
    first pass, and must not depend on its inputs: the first pass may fill a cache of constants.

    Args:
        model: in the mode in which it is used.
        run: the pass.
        inputs: of a few examples, like those of training.
        others: of other examples.

    Returns:
        The outputs of the first pass.

    Raises:
        UnsupportedModelError: a pass writes something, which is named, or changes its inputs.
    """
    watch, kept = Watch(model), _kept(model)
    copied = copy_of(model)
    given = inputs.clone()
    start = _attributes(copied)
    with same_draws(inputs.device):
        first = run(copied, given)
    if not _same(given, inputs):
        raise UnsupportedModelError(
            f"{type(model).__name__} changes its inputs in place, so that a second pass would read "
            "others: let it begin with inputs.clone(), or use operations that are not in place"
        )
    filled = _attributes(copied)
    with same_draws(inputs.device), torch.no_grad():
        run(copied, others)
    with same_draws(inputs.device):
        again = run(copied, inputs.clone())
    left = _kept(copied)
    written = _different(filled, _attributes(copied))
    changed = _different(kept, left)
    # Merging adapters into a weight and removing them again rounds the weight.
    written += [n for n in changed if not _differ_by_rounding(kept.get(n), left.get(n))]
    if changed or _different(start, filled):
        # A cache of constants, or a weight that was rounded: equal after passes of other examples.
        other = copy_of(model)
        for _ in range(3):
            with same_draws(inputs.device):
                run(other, others.clone())
        written += _different(filled, _attributes(other)) + _different(left, _kept(other))
    written += watch.written()  # by a hook of the copy
    if written:
        raise _refusal(model, written)
    precision = torch.finfo(first.dtype).eps ** 0.5
    if not torch.allclose(first, again, rtol=precision, atol=precision, equal_nan=True):
        raise UnsupportedModelError(
            f"{type(model).__name__} gives other outputs when it sees the same inputs again, with the "
            "same random numbers: it stores data of the examples outside its parameters, buffers and "
            "attributes, without noise. Remove that state"
        )
    return first


class Watch:
    """A detector of writes to the parameters and buffers of a network after its creation.

    It compares only the versions that torch counts, so it does not wait for the device.
    """

    def __init__(self, model: nn.Module):
        """Record the present state of a network."""
        self._model = model
        self._tensors = _tensors(model)
        self._marks = _marks(self._tensors)

    def written(self) -> list[str]:
        """Return the names of tensors that were written, replaced or added."""
        tensors = _tensors(self._model)
        marks = _marks(tensors)
        if marks == self._marks:
            return []
        layers = {module: name for name, module in self._model.named_modules()}
        return [
            f"{layers[place[0]]}.{place[1]}".lstrip(".")
            for place, mark in marks.items()
            if mark != self._marks.get(place) and not self._rounded(place, tensors[place])
        ]

    def _rounded(self, place: _Place, tensor: Tensor) -> bool:
        """Return whether a tensor was replaced by an equal one, as merging and unmerging adapters does."""
        before = self._tensors.get(place, tensor)
        return before is not tensor and _differ_by_rounding(before, tensor)


def copy_of(model: nn.Module) -> nn.Module:
    """Return an independent copy of a network.

    Raises:
        UnsupportedModelError: the network cannot be copied.
    """
    # Python's copy refuses tensors computed from others, which layers with old weight norms store.
    with torch._C.DisableTorchFunctionSubclass():
        computed = {
            id(each): each.detach().as_subclass(Tensor).clone()
            for each in _walk(model).values()
            if isinstance(each, Tensor)
            and (not each.is_leaf or type(each) not in (Tensor, nn.Parameter))
        }
    try:
        return copy.deepcopy(model, computed)
    except Exception as error:  # of any kind: attributes may be anything
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot be copied ({brief(error)}), so its passes cannot be checked: "
            "remove files, locks and similar objects from it"
        ) from error


@contextmanager
def same_draws(device: torch.device, seed: int = 0) -> Iterator[None]:
    """Seed all random numbers inside with ``seed``; the global random states do not change."""
    python, legacy = random.getstate(), np.random.get_state()
    gpu = device.type == "cuda" and torch.cuda.is_available()
    try:
        with torch.random.fork_rng(devices=[device] if gpu else []):
            random.seed(seed)
            np.random.seed(seed)
            torch.default_generator.manual_seed(seed)
            if gpu:
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(legacy)


def _refusal(model: nn.Module, written: list[str]) -> UnsupportedModelError:
    names = shorten(repr(each) for each in dict.fromkeys(written))
    mode = (
        "Call model.eval(), or use layers without state"
        if any(each.training for each in model.modules())
        else "Use layers without state; initialise layers with public inputs if the first batch does so"
    )
    return UnsupportedModelError(
        f"a pass through {type(model).__name__} writes {names}, which would store data of the private "
        f"examples without noise. {mode}"
    )


def _kept(model: nn.Module) -> Values:
    """Return parameters, buffers, and everything else in a network's ``state_dict()``."""
    found: Values = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, value in model.state_dict().items():
        found.setdefault(name, value)
    return _flat(found)


def _attributes(model: nn.Module) -> Values:
    """Return copies of the other attributes, which later writes do not change."""
    return {
        name: value.detach().clone() if isinstance(value, Tensor) else value
        for name, value in _walk(model).items()
    }


def _walk(model: nn.Module) -> Values:
    """Return tensors and plain values in attributes of layers and their classes, also nested ones."""
    seen = {id(module) for module in model.modules()}
    found: Values = {}
    for name, module in model.named_modules():
        own = {key: value for key, value in vars(module).items() if key not in _OF_EVERY_MODULE}
        found |= _flat(own, name and f"{name}.", seen)
    kinds = {kind for module in model.modules() for kind in type(module).__mro__}
    for kind in kinds.difference(nn.Module.__mro__):
        own = {key: value for key, value in vars(kind).items() if not key.startswith("__")}
        found |= _flat(own, f"{kind.__name__}.", seen)
    return found


def _flat(values: Mapping[str, Any], prefix: str = "", seen: set[int] | None = None) -> Values:
    """Return the contents of containers and objects by names such as ``layer.bank[3]``."""
    found: Values = {}
    seen = set() if seen is None else seen
    waiting: list[tuple[str, Any]] = [(f"{prefix}{key}", each) for key, each in values.items()]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, _PLAIN | Tensor):
            found[name] = value
        elif isinstance(value, np.ndarray | np.generic):
            found[name] = str(value.dtype), value.tobytes()
        elif id(value) in seen or isinstance(value, type | ModuleType) or inspect.isroutine(value):
            continue
        elif isinstance(value, Mapping):
            found[name] = len(value)
            waiting += [(f"{name}[{_key(key)}]", each) for key, each in value.items()]
        elif isinstance(value, set | frozenset):
            found[name] = sorted(map(_key, value))
        elif isinstance(value, list | tuple | deque):
            found[name] = len(value)
            waiting += [(f"{name}[{index}]", each) for index, each in enumerate(value)]
        elif hasattr(value, "__dict__"):
            waiting += [(f"{name}.{key}", each) for key, each in vars(value).items()]
        seen.add(id(value))
    return found


def _key(key: object) -> str:
    """Return a key as text, without an address, which would differ between two copies."""
    return repr(key) if isinstance(key, _PLAIN | tuple) else type(key).__name__


def _different(first: Values, second: Values) -> list[str]:
    """Return the names of values that are missing in one, or differ."""
    return [
        name
        for name in dict.fromkeys((*first, *second))
        if name not in first or name not in second or not _same(first[name], second[name])
    ]


def _same(first: Any, second: Any) -> bool:
    """Return whether two values are equal bit by bit, so that NaN equals NaN."""
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return type(first) is type(second) and (first == second or repr(first) == repr(second))
    if (first.shape, first.dtype, first.device) != (second.shape, second.dtype, second.device):
        return False
    if first.is_meta or first is second:
        return True
    first, second = (_bits(each) for each in (first, second))
    return torch.equal(first, second)


def _bits(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    return tensor.to_dense().contiguous().reshape(-1).view(torch.uint8)


def _differ_by_rounding(first: Any, second: Any) -> bool:
    """Return whether two tensors have the same numbers except for rounding."""
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return False
    if first.shape != second.shape or first.dtype != second.dtype or not first.is_floating_point():
        return _same(first, second)
    largest = first.detach().abs().nan_to_num(posinf=0).amax() if first.numel() else 0.0
    error = _ROUNDING * torch.finfo(first.dtype).eps * float(largest)
    return torch.allclose(first, second, rtol=0, atol=error, equal_nan=True)


def _tensors(model: nn.Module) -> dict[_Place, Tensor]:
    return {
        (module, key): tensor
        for module in model.modules()
        for group in (module._parameters, module._buffers)
        for key, tensor in group.items()
        if tensor is not None
    }


def _marks(tensors: Mapping[_Place, Tensor]) -> dict[_Place, tuple[int, int]]:
    """Return marks that change when a tensor is written or replaced; valid while the tensors exist."""
    return {
        place: (id(each), 0 if each.is_inference() else each._version)
        for place, each in tensors.items()
    }


COUNT = 3
"""How many examples are compared."""


def drawn(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return distinct examples like those of a batch, and as many others.

    Args:
        inputs: of the batch. Numbers are drawn at random. Tokens get another order; if that does not
            make the examples distinct, they are replaced by smaller tokens.
    """
    if inputs.is_floating_point() or inputs.is_complex():
        # Not the seed of the parameters: examples equal to parameters saturate the softmax, and then
        # their gradients are only rounding errors.
        generator = torch.Generator().manual_seed(1)
        found = torch.randn((2 * COUNT, *inputs.shape[1:]), generator=generator)
        return _halves(found.to(inputs.device, inputs.dtype))
    rows = inputs if inputs.dim() > 1 else inputs[:, None]
    found = torch.stack([rows[k % len(rows)].roll(k, dims=-1) for k in range(2 * COUNT)])
    if len(torch.unique(found, dim=0)) < len(found):
        shifts = torch.arange(len(found), device=found.device).view(-1, *[1] * (found.dim() - 1))
        found = ((found - shifts) % (found.amax().clamp(min=0) + 1)).to(inputs.dtype)
    return _halves(found.reshape(-1, *inputs.shape[1:]))


def from_batch(inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return examples as `drawn` does, from the batch's own numbers times factors from 1/2 to 1.

    So positive numbers, probabilities and category indices stay valid for networks that need them.
    """
    generator = torch.Generator().manual_seed(1)
    rows = inputs[torch.arange(2 * COUNT, device=inputs.device) % len(inputs)]
    factors = 0.5 + 0.5 * torch.rand(rows.shape, generator=generator)
    return _halves(rows * factors.to(rows.device, rows.dtype))


def _halves(examples: Tensor) -> tuple[Tensor, Tensor]:
    first, second = torch.split(examples, COUNT)
    return first, second
