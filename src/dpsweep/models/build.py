"""Models that are ready to train: a prepared backbone, and the parameters that a method trains."""

import copy
import logging
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import nn
from torch.func import functional_call

from dpsweep.models import architectures
from dpsweep.models.backbone import PreparedBackbone
from dpsweep.models.sequence_classifier import SequenceClassifier
from dpsweep.study import networks
from dpsweep.study.messages import brief, shorten, unknown
from dpsweep.study.networks import BackboneError, Method

log = logging.getLogger(__name__)


def build_model(folder: Path, method: Method, classes: int, seed: int) -> nn.Module:
    """Return a float32 model on the CPU with the ``requires_grad`` flags of the method.

    The head's last layer starts at zero, so training starts from uniform predictions (paper, section on
    experiments). Only `Scratch` keeps the network's own initialisation of the head.

    Args:
        folder: a prepared backbone.
        method: which parameters train.
        classes: outputs of the head.
        seed: for a backbone without weights, and for LoRA's first factor. The global random state is
            neither read nor changed.

    Raises:
        BackboneError: the backbone is missing or damaged, has batch normalisation without public
            statistics, or the method does not fit it.
    """
    backbone = PreparedBackbone.open(folder)
    if isinstance(method, networks.Scratch) and backbone.metadata.pretrained:
        raise BackboneError(
            f"{backbone.metadata.name} has pretrained weights, so it does not train from scratch; "
            "allowed: a backbone with weights: {kind: random}"
        )
    with architectures.seeded(seed):
        model = architectures.create(backbone.metadata.architecture, classes)
        if backbone.metadata.pretrained:
            _load(model, architectures.find_head(model), backbone)
        else:
            architectures.refuse_unknown_statistics(model)
        make_trainable(model, method)
    if isinstance(method, networks.Film):
        for note in notes_on_film(model):
            log.warning("%s: %s", backbone.metadata.name, note)
    return model


def make_trainable(model: nn.Module, method: Method) -> None:
    """Set the head to zero and the ``requires_grad`` flags of a method; see `build_model`.

    Raises:
        BackboneError: the method does not fit the model.
    """
    if not isinstance(method, networks.Scratch):
        for output in architectures.find_head(model).outputs:
            _zero(model.get_submodule(output))
    apply_method(model, method)


def _zero(module: nn.Module) -> None:
    for parameter in module.parameters():
        nn.init.zeros_(parameter)


def build_head(features: int, classes: int) -> nn.Linear:
    """Return a head on cached features: a trainable linear layer that starts at zero."""
    head = nn.Linear(features, classes)
    _zero(head)
    return head


def linear_head(model: nn.Module) -> str:
    """Return the name of a network's head, which must be one linear layer like that of `build_head`.

    Raises:
        BackboneError: the head is not one linear layer.
    """
    head = architectures.find_head(model)
    layer = model.get_submodule(head.outputs[0])
    if head.modules != head.outputs or len(head.outputs) > 1 or not isinstance(layer, nn.Linear):
        raise BackboneError(
            f"{type(model).__name__} has a head of {', '.join(head.modules)}, which is not one linear "
            "layer as a head on its features is; allowed: the backbone without its section features"
        )
    return head.outputs[0]


def apply_method(model: nn.Module, method: Method) -> None:
    """Set the ``requires_grad`` flags of a method in a model; LoRA also adds its adapters.

    Raises:
        BackboneError: the method does not fit the model.
    """
    trainable = select(model, method) | head_parameter_names(model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trainable)


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable parameters by name, sorted by name."""
    return dict(
        sorted((name, value) for name, value in model.named_parameters() if value.requires_grad)
    )


def head_parameter_names(model: nn.Module) -> frozenset[str]:
    """Return the names of the classification head's parameters."""
    if isinstance(model, nn.Linear):  # only a head
        return frozenset(name for name, _ in model.named_parameters())
    head = architectures.find_head(model)
    return frozenset(name for name, _ in model.named_parameters() if head.holds(name))


def _load(model: nn.Module, head: architectures.Head, backbone: PreparedBackbone) -> None:
    own = {key: value for key, value in model.state_dict().items() if head.holds(key)}
    try:
        model.load_state_dict(backbone.state() | own)
    except RuntimeError as error:
        raise BackboneError(
            f"{backbone.folder}: the weights do not fit {backbone.metadata.architecture.name}: {brief(error)}"
        ) from None


def select(model: nn.Module, method: Method) -> set[str]:
    """Return the names of trainable parameters outside the head; LoRA adds its adapters to the model.

    Raises:
        BackboneError: the method does not fit the model, or freezes parameters that do not train.
    """
    match method:
        case networks.HeadOnly():
            names = set[str]()
        case networks.AllParameters() | networks.Scratch():
            names = {name for name, _ in model.named_parameters()}
        case networks.Film():
            names = normalisation_parameters(model)
        case networks.LoRA():
            names = _add_adapters(model, method)
    head, frozen = head_parameter_names(model), set[str]()
    for pattern in method.freeze:
        found = {
            name
            for name in names | head
            if fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")
        }
        if found & head:
            raise BackboneError(
                f"freeze: found {pattern}, which holds the head ({shorten(sorted(found & head))}); allowed: "
                "parameters outside the head"
            )
        if not found:
            raise BackboneError(f"freeze: {unknown(pattern, sorted(names - head) or ['nothing'])}")
        frozen |= found
    return names - frozen


def _is_pointwise(module: nn.Module) -> bool:
    """Return whether a layer is a 1x1 convolution, which is linear in the channels of each pixel."""
    return isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) and module.groups == 1


def _add_adapters(model: nn.Module, method: networks.LoRA) -> set[str]:
    # peft takes seconds to import and only this method needs it.
    from peft import LoraConfig, inject_adapter_in_model  # noqa: PLC0415

    head, modules = architectures.find_head(model), dict(model.named_modules())
    held = {name for name in modules if head.holds(f"{name}.weight")}
    linear = {name for name, module in modules.items() if isinstance(module, nn.Linear)}
    in_head = linear & held
    linear |= {name for name, module in modules.items() if _is_pointwise(module)} - held
    for target in method.target_modules:
        matches = {name for name in modules if name == target or name.endswith(f".{target}")}
        if matches <= in_head or matches - linear:
            wrong = shorten(sorted(matches - linear or matches))
            found = f"matches {wrong}" if matches else "matches no layer"
            endings = sorted({".".join(name.split(".")[-2:]) for name in linear - in_head})
            raise BackboneError(
                f"LoRA target {target!r} {found} of {type(model).__name__}; allowed: linear layers outside "
                f"the head, by name: {shorten(endings)}"
            )
    configuration = LoraConfig(
        r=method.rank,
        lora_alpha=method.rank,
        lora_dropout=0.0,
        target_modules=list(method.target_modules),
        exclude_modules=sorted(in_head),
    )
    before = {name for name, _ in model.named_parameters()}
    inject_adapter_in_model(configuration, model)
    after = {name for name, _ in model.named_parameters()}
    return {name for name in after - before if ".lora_" in name}


# -- normalisation layers ---------------------------------------------------------------------
# FiLM trains their scales and biases. Many networks define their own layers (LlamaRMSNorm, T5LayerNorm), so
# a list of names cannot be complete, and each layer is tested. It normalises if its parameters are vectors of
# the width of its inputs, and if its outputs depend on its inputs, but not on their scale.

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
    """Return a note on layers with the name of a normalisation that FiLM leaves out, if there are any."""
    head = architectures.find_head(model)
    left_out = {
        kind
        for name, module in model.named_modules()
        if "norm" in (kind := type(module).__name__).lower()
        and _has_parameters(module)
        and not (head.holds(f"{name}.") or normalises(module))
    }
    return [
        f"FiLM leaves out layers of class {kind}: their outputs depend on the scale of their inputs, or "
        "their parameters are not one scale and bias for each feature"
        for kind in sorted(left_out)
    ]


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))
