"""Which models have per-example gradients at all: refused by name before training starts."""

from collections.abc import Callable

from torch import nn

from dpsweep.training.gradients.interface import UnsupportedModelError


def check_model(model: nn.Module, head_parameters: frozenset[str]) -> dict[str, nn.Parameter]:
    """Return the trainable parameters of a model by name, in the model's order.

    The layers are also put before Opacus' validation, which knows what else mixes examples or
    hides its parameters from per-example gradients (recurrent layers, fused attention, ...).

    Raises:
        UnsupportedModelError: if nothing trains, a head parameter does not train, a layer is a
            batch normalisation or is refused by Opacus, or a trainable weight is tied.
    """
    parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
    if not parameters:
        raise UnsupportedModelError("the model has no trainable parameter: unfreeze some")
    if unknown := sorted(head_parameters - parameters.keys()):
        raise UnsupportedModelError(f"head parameters {unknown} are not trainable parameters")
    _refuse_batch_norm(model)
    _refuse_tied_weights(model, parameters)
    _refuse_what_opacus_refuses(model)
    return parameters


def check_owners(model: nn.Module, supports: Callable[[str, nn.Module], bool], engine: str) -> None:
    """Check that an engine may know all layers whose parameters train.

    Parameters that a layer of another kind holds are supported if they can be broadcast over the
    examples: a class token or position embeddings, of shape (1, ...).

    Args:
        model: the model.
        supports: whether the engine knows the parameter of this name in this layer.
        engine: its name.

    Raises:
        UnsupportedModelError: naming the parameter and its layer.
    """
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(prefix, recurse=False):
            bare = parameter.dim() > 1 and parameter.shape[0] == 1
            if parameter.requires_grad and not supports(name, module) and not bare:
                raise UnsupportedModelError(
                    f"trainable parameter {name!r} of shape {tuple(parameter.shape)} belongs to a "
                    f"{type(module).__name__}, for which engine {engine!r} has no per-example "
                    "gradient: freeze it, or choose another engine"
                )


def _refuse_batch_norm(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise UnsupportedModelError(
                f"layer {name!r} ({type(module).__name__}) mixes the examples of a batch, so no "
                "example has a gradient of its own: use group or layer normalisation instead"
            )


def _refuse_tied_weights(model: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
    trainable = {id(parameter) for parameter in parameters.values()}
    names: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        # Two parameters may also share one memory, as after `b.data = a.data`.
        first = names.setdefault(parameter.data_ptr(), name)
        if first != name and (id(parameter) in trainable or first in parameters):
            raise UnsupportedModelError(
                f"trainable weight {name!r} is tied to {first!r}: its per-example gradient is a "
                "sum over both uses; untie the two, or freeze the weight"
            )


def _refuse_what_opacus_refuses(model: nn.Module) -> None:
    # Opacus sets up logging and takes a second to import: only when an engine is made.
    from opacus.utils.module_utils import trainable_modules  # noqa: PLC0415
    from opacus.validators import ModuleValidator  # noqa: PLC0415
    from opacus.validators.errors import IllegalModuleConfigurationError  # noqa: PLC0415

    for name, module in trainable_modules(model):
        if type(module) not in ModuleValidator.VALIDATORS:
            continue
        for error in ModuleValidator.validate(module):
            # That a model must be in train mode is a rule of Opacus' own hooks.
            if not isinstance(error, IllegalModuleConfigurationError):
                raise UnsupportedModelError(
                    f"layer {name!r} ({type(module).__name__}) is refused by Opacus: {error}"
                )
