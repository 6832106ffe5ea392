"""An engine that uses the ghost and fast gradient clipping of Opacus, with our factors."""

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from opacus.grad_sample import GradSampleHooksFastGradientClipping
from opacus.utils.module_utils import trainable_modules
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from dpsweep.gradients import engines
from dpsweep.gradients.per_example import sum_dtype
from dpsweep.gradients.refusals import UnsupportedModelError
from dpsweep.gradients.units import units_of
from dpsweep.study.clipping import Clipping

# Attributes that a pass that fails leaves on layers.
_LEFT_ON_LAYERS = ("activations", "max_batch_len")


@contextmanager
def _no_warning() -> Iterator[None]:
    """Hide torch's warning about the first trainable layer, whose inputs need no gradient."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        yield


class OpacusEngine(engines.GradientEngine):
    """An engine with norms from the hooks of Opacus, and sums from a second backward pass.

    Only the norms are computed by Opacus; our factors replace its factor C / (norm + 1e-6). Layers
    without a rule in Opacus (such as timm's normalisation layers) use functorch, which is slow.

    The second backward pass cannot leave out an example with numbers that are not finite. So this
    engine, unlike the others, waits for the device to check for such examples. If there are any, the
    loop computes the micro-batch.
    """

    def __init__(
        self, model: nn.Module, head_parameters: frozenset[str] = frozenset(), **options: Any
    ):
        """Prepare a model; see ``GradientEngine``. It runs without autocast.

        Raises:
            UnsupportedModelError: an embedding has options that Opacus ignores.
        """
        super().__init__(model, head_parameters, **options)
        _refuse_options(model)
        self._first = True

    @engines.full_precision()
    @_no_warning()
    def compute(self, rows: engines.Rows, clipping: Clipping | None) -> engines.GradientSum:
        """See ``GradientEngine``."""
        mask = rows.mask
        _refuse_units(rows.units, mask)
        losses, squared = self._pass(rows.inputs, rows.labels)
        norms = torch.stack(list(squared.values())).sum(0).sqrt()
        if not bool(norms.isfinite().all()):
            return engines.LoopEngine(self.model, self._head).compute(rows, clipping)
        gradients: dict[str, Tensor] = {}
        if clipping is not None:
            factors = torch.where(mask, clipping.factors(norms), 0)
            sums = engines.gradients_of((factors * losses).sum(), self.parameters.values())
            gradients = {
                name: each.to(sum_dtype(each))
                for name, each in zip(self.parameters, sums, strict=True)
                if each is not None  # `_pass` has refused others
            }
        of_head = [each for name, each in squared.items() if name in self._head]
        head_norms = torch.stack([torch.zeros_like(norms), *of_head]).sum(0).sqrt()
        return engines.GradientSum(
            gradients=gradients,
            norms=torch.where(mask, norms, 0),
            head_norms=torch.where(mask, head_norms, 0),
            losses=torch.where(mask, losses.detach(), 0),
            nonfinite=torch.zeros_like(mask),
        )

    def _pass(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the losses with their graph, and the squared norms of each parameter."""
        with torch.enable_grad(), self._hooked():
            with _ReadByTheirLayers(self.model) if self._first else nullcontext():
                losses = engines.example_losses(self.model, inputs, labels)
            gradients = engines.gradients_of(
                losses.sum(), self.parameters.values(), retain_graph=True
            )
            squared = {}
            for (name, parameter), gradient in zip(self.parameters.items(), gradients, strict=True):
                norms = getattr(parameter, "_norm_sample", None)
                if gradient is None or norms is None or norms.shape != losses.shape:
                    raise UnsupportedModelError(
                        f"Opacus has no per-example gradient of trainable parameter {name!r} of shape "
                        f"{tuple(parameter.shape)}: freeze it, or choose another engine"
                    )
                squared[name] = norms.square()
        self._first = False
        return losses, squared

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        """Add the hooks of Opacus, and switch the layers to train mode, which the hooks need."""
        hooks = GradSampleHooksFastGradientClipping(self.model, loss_reduction="sum")
        with ExitStack() as stack:
            stack.callback(hooks.cleanup)
            for _, layer in trainable_modules(self.model):
                # Only this layer: dropout inside it keeps its mode.
                stack.callback(setattr, layer, "training", layer.training)
                layer.training = True
                for attribute in _LEFT_ON_LAYERS:
                    stack.callback(vars(layer).pop, attribute, None)
            yield


class _ReadByTheirLayers(TorchFunctionMode):
    """A mode that refuses functions of a trainable parameter outside of its layer, where no hook sees them.

    The comparison with the loop need not show them: their share of the gradient may be small.
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self._running: list[nn.Module] = []
        self._layers = {
            id(parameter): (layer, f"{name}.{key}".lstrip("."))
            for name, layer in model.named_modules()
            for key, parameter in layer.named_parameters(recurse=False)
            if parameter.requires_grad
        }
        layers = {layer for layer, _ in self._layers.values()}
        self._handles = [
            *(e.register_forward_pre_hook(lambda e, _: self._running.append(e)) for e in layers),
            # First, because a layer's own hooks run after its end.
            *(
                e.register_forward_hook(lambda *_: self._end(), prepend=True, always_call=True)
                for e in layers
            ),
        ]

    def _end(self) -> None:
        self._running.pop()

    def __exit__(self, *args: Any) -> None:
        for handle in self._handles:
            handle.remove()
        super().__exit__(*args)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if any(isinstance(each, Tensor) and each.requires_grad for each in tree_leaves(found)):
            for each in tree_leaves((args, kwargs)):
                layer, name = self._layers.get(id(each), (None, ""))
                if layer is not None and layer not in self._running:
                    raise UnsupportedModelError(
                        f"trainable parameter {name!r} is read outside of its layer, by "
                        f"{func.__name__}(), which the hooks of Opacus do not see: use engine auto"
                    )
        return found


def _refuse_units(ids: Any, mask: Tensor) -> None:
    if units_of(ids, mask) is not None:
        raise UnsupportedModelError(
            "engine 'opacus' clips the gradient of every row, so that it cannot train on units of several "
            "rows; use engine auto"
        )


def _refuse_options(model: nn.Module) -> None:
    """Refuse embeddings with options that the norms of Opacus ignore; made-up texts may not show them."""
    for name, module in model.named_modules():
        padded = (
            isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.padding_idx is not None
        )
        trains = any(each.requires_grad for each in module.parameters(recurse=False))
        if trains and (padded or getattr(module, "scale_grad_by_freq", False)):
            option = "padding_idx" if padded else "scale_grad_by_freq"
            raise UnsupportedModelError(
                f"layer {name!r} ({type(module).__name__}) has {option}, which the norms of Opacus "
                "ignore: choose another engine"
            )
