"""The normalisation layers of a network, whose scales and biases FiLM trains.

Many networks define their own layers (``LlamaRMSNorm``, ``T5LayerNorm``), so a list of names cannot be
complete. So each layer is tested. It normalises if its parameters are vectors of the width of its inputs,
and if its outputs depend on its inputs, but not on their scale.
"""

import copy
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dpsweep.models.architectures import find_head
from dpsweep.models.sequence_classifier import SequenceClassifier
from dpsweep.study.backbones import BackboneError
from dpsweep.study.messages import shorten

_TORCH = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._BatchNorm)

# A single number would be normalised to its sign, which loses its value.
_NARROWEST = 2

# With large inputs, the small epsilon that prevents divisions by zero has no effect.
_SCALES = (4.0, 16.0)


def normalisation_parameters(model: nn.Module) -> set[str]:
    """Return the names of the scales and biases of all layers that normalise.

    Raises:
        BackboneError: there are none; the message names the layers and why they do not count.
    """
    names = {
        f"{layer}.{name}"
        for layer, module in model.named_modules()
        if not why_not(module)
        for name, _ in module.named_parameters(recurse=False)
    }
    if not names:
        network = model.name if isinstance(model, SequenceClassifier) else type(model).__name__
        raise BackboneError(
            f"FiLM trains the scale and bias of normalisation layers, but {network} has none: "
            f"{_all_reasons(model)}; allowed: another method"
        )
    return names


def why_not(module: nn.Module) -> str:
    """Return why a layer's parameters are not the scale and bias of a normalisation; '' if they are."""
    if not _has_parameters(module):
        return "has no parameters"
    if isinstance(module, _TORCH):
        return ""
    own = dict(module.named_parameters(recurse=False))
    shapes = {each.shape for each in module.parameters()}
    if len(shapes) > 1 or len(shape := shapes.pop()) != 1 or len(own) < len([*module.parameters()]):
        return "has parameters that are not vectors of one width"
    if shape[0] < _NARROWEST:
        return "has a width of 1"
    if any(True for _ in module.buffers()):
        return "has buffers besides its parameters"
    return _probe(module, list(own), shape[0])


@torch.no_grad()
def _probe(module: nn.Module, names: list[str], width: int) -> str:
    """Return why a layer's outputs are not normalised over the last or the second dimension, or ''.

    A layer on ``meta`` is tested on the CPU, with other parameters.
    """
    random = torch.Generator().manual_seed(0)
    reason = "does not take one tensor of features"
    with torch.device("cpu"):
        parameters = {name: 0.5 + torch.rand(width, generator=random) for name in names}
        for shape in ((2, 5, width), (2, width, 5, 5), (2, 5, 5, width)):
            inputs = torch.randn(shape, generator=random)
            tried = [scale * inputs for scale in _SCALES] + [_SCALES[0] * inputs.flip(0)]
            if (outputs := _outputs(module, parameters, tried)) is None:
                continue
            small, large, other = outputs
            if any(not isinstance(each, Tensor) or each.shape != shape for each in outputs):
                reason = "does not return one tensor of the same shape"
            elif not torch.allclose(small, large, rtol=1e-3, atol=1e-3):
                reason = "has outputs that depend on the scale of its inputs"
            elif torch.allclose(small, other, rtol=1e-3, atol=1e-3):
                reason = "has the same outputs for all inputs"
            else:
                return ""
    return reason


def _outputs(
    module: nn.Module, parameters: dict[str, Tensor], tried: list[Tensor]
) -> list[Any] | None:
    try:
        layer = copy.deepcopy(module).eval()
        return [functional_call(layer, parameters, inputs) for inputs in tried]
    except Exception:  # of any kind: the layer has other inputs
        return None


def notes_on_film(model: nn.Module) -> list[str]:
    """Return notes on layers of classes other than torch's that FiLM trains or leaves out."""
    head = find_head(model)
    trained: defaultdict[str, int] = defaultdict(int)
    left_out: defaultdict[str, list[str]] = defaultdict(list)
    reasons: dict[str, str] = {}
    for name, module in model.named_modules():
        kind = type(module).__name__
        if not _has_parameters(module) or isinstance(module, _TORCH) or head.holds(f"{name}."):
            continue
        if not (why := why_not(module)):
            trained[kind] += 1
        elif _is_named_norm(module):
            left_out[kind].append(name)
            reasons[kind] = why
    notes = []
    if trained:
        counted = ", ".join(
            f"{count} layer{'s' * (count > 1)} of class {kind}" for kind, count in trained.items()
        )
        notes.append(f"FiLM trains {counted} as normalisation")
    if left_out:
        listed = "; ".join(f"{kind} ({shorten(names)})" for kind, names in left_out.items())
        notes.append(
            f"FiLM leaves out {listed}: it trains layer, group, batch and RMS normalisation, and "
            f"{_reasons_text(reasons)}"
        )
    return notes


def _all_reasons(model: nn.Module) -> str:
    """Return why classes named as normalisation do not count; without such, the classes of all layers."""
    reasons = {
        type(each).__name__: why_not(each)
        for each in model.modules()
        if _is_named_norm(each) and (_has_parameters(each) or not [*each.children()])
    }
    if reasons:
        return _reasons_text(reasons)
    kinds = {type(each).__name__ for each in model.modules() if _has_parameters(each)}
    return f"its layers are of class {shorten(sorted(kinds))}"


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))


def _is_named_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


def _reasons_text(reasons: dict[str, str]) -> str:
    return ", ".join(f"{kind} {reason}" for kind, reason in reasons.items())
