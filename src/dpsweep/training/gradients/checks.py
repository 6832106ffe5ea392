"""Which models have per-example gradients at all: refused by name before training starts."""

from torch import nn

from dpsweep.training.gradients.interface import UnsupportedModelError


def check_model(model: nn.Module, head_parameters: frozenset[str]) -> dict[str, nn.Parameter]:
    """Return the trainable parameters of a model by name, in the model's order.

    Raises:
        UnsupportedModelError: if nothing trains, a head parameter does not train, a layer keeps
            statistics of the batches that it sees, or two trainable weights share their memory.
    """
    parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
    if not parameters:
        raise UnsupportedModelError("the model has no trainable parameter: unfreeze some")
    if unknown := sorted(head_parameters - parameters.keys()):
        raise UnsupportedModelError(f"head parameters {unknown} are not trainable parameters")
    _refuse_batch_statistics(model)
    _refuse_shared_memory(model)
    return parameters


def shared_parameters(model: nn.Module) -> dict[str, str]:
    """Return the layers' further names of trainable parameters that several layers hold.

    The value is the name that ``named_parameters`` has. A layer that itself has several names, as
    where a network uses it at several places, counts once.
    """
    first: dict[nn.Parameter, str] = {}
    further = {}
    for layer, module in model.named_modules():
        for name, parameter in module.named_parameters(layer, recurse=False):
            known = first.setdefault(parameter, name)
            if known != name and parameter.requires_grad:
                further[name] = known
    return further


def _refuse_batch_statistics(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise UnsupportedModelError(
                f"layer {name!r} ({type(module).__name__}) mixes the examples of a batch, so no "
                "example has a gradient of its own: use group or layer normalisation instead"
            )
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
            raise UnsupportedModelError(
                f"layer {name!r} ({type(module).__name__}) keeps statistics of all examples that "
                "it sees, without noise: switch track_running_stats off"
            )


def _refuse_shared_memory(model: nn.Module) -> None:
    """Refuse two parameters in one memory, as after ``b.data = a.data``."""
    first: dict[int, tuple[str, nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        known, other = first.setdefault(parameter.data_ptr(), (name, parameter))
        if other is not parameter and (parameter.requires_grad or other.requires_grad):
            raise UnsupportedModelError(
                f"trainable weight {name!r} is tied to {known!r}: they are two parameters in one "
                "memory, and neither has the whole gradient; untie the two, or freeze both"
            )
