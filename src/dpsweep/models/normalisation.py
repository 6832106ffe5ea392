"""The normalisation layers of a network, whose scales and biases FiLM trains.

Many networks define their own layers (``LlamaRMSNorm``, ``T5LayerNorm``), so a list of names cannot be
complete. So each layer is tested. It normalises if its parameters are vectors of the width of its inputs,
and if its outputs depend on its inputs, but not on their scale.
"""

import copy
from collections import Counter
from contextlib import suppress

import torch
from torch import nn
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
        BackboneError: there are none.
    """
    names = {
        f"{layer}.{name}"
        for layer, module in model.named_modules()
        if normalises(module)
        for name, _ in module.named_parameters(recurse=False)
    }
    if not names:
        network = model.name if isinstance(model, SequenceClassifier) else type(model).__name__
        kinds = {type(each).__name__ for each in model.modules() if _has_parameters(each)}
        raise BackboneError(
            f"FiLM trains the scale and bias of normalisation layers, but {network} has none, only layers of "
            f"class {shorten(sorted(kinds))}; allowed: another method"
        )
    return names


def normalises(module: nn.Module) -> bool:
    """Return whether a layer's parameters are the scale and bias of a normalisation.

    >>> normalises(nn.LayerNorm(4)), normalises(nn.Linear(4, 4))
    (True, False)
    """
    if isinstance(module, _TORCH):
        return _has_parameters(module)
    own = dict(module.named_parameters(recurse=False))
    shapes = {each.shape for each in module.parameters()}
    if not own or len(own) < len([*module.parameters()]) or any(True for _ in module.buffers()):
        return False
    if len(shapes) > 1 or len(shape := shapes.pop()) != 1 or shape[0] < _NARROWEST:
        return False
    return _probe(module, list(own), shape[0])


@torch.no_grad()
def _probe(module: nn.Module, names: list[str], width: int) -> bool:
    """Return whether a layer's outputs are normalised over the last or the second dimension.

    A layer on ``meta`` is tested on the CPU, with other parameters.
    """
    random = torch.Generator().manual_seed(0)
    with torch.device("cpu"):
        parameters = {name: 0.5 + torch.rand(width, generator=random) for name in names}
        for shape in ((2, 5, width), (2, width, 5, 5), (2, 5, 5, width)):
            inputs = torch.randn(shape, generator=random)
            tried = [*(scale * inputs for scale in _SCALES), _SCALES[0] * inputs.flip(0)]
            with suppress(Exception):  # of any kind: the layer has other inputs or outputs
                layer = copy.deepcopy(module).eval()
                small, large, other = (functional_call(layer, parameters, each) for each in tried)
                same = [
                    torch.allclose(small, each, rtol=1e-3, atol=1e-3) for each in (large, other)
                ]
                if small.shape == shape and same == [True, False]:
                    return True
    return False


def notes_on_film(model: nn.Module) -> list[str]:
    """Return notes on layers of classes other than torch's that FiLM trains or leaves out."""
    head = find_head(model)
    others = [
        module
        for name, module in model.named_modules()
        if _has_parameters(module) and not isinstance(module, _TORCH) and not head.holds(f"{name}.")
    ]
    trained = Counter(type(each).__name__ for each in others if normalises(each))
    named = {kind for each in others if "norm" in (kind := type(each).__name__).lower()}
    notes = [
        f"FiLM trains {count} layers of class {kind} as normalisation"
        for kind, count in trained.items()
    ]
    if left_out := sorted(named - trained.keys()):
        notes.append(
            f"FiLM leaves out layers of class {', '.join(left_out)}: their outputs depend on the scale of "
            "their inputs, or their parameters are not one scale and bias for each feature"
        )
    return notes


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))
