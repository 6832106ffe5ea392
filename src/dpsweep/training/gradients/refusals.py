"""The models that every engine refuses, because their examples have no gradients of their own."""

from torch import nn

from dpsweep.base.errors import DpsweepError
from dpsweep.models.architectures import has_statistics
from dpsweep.study.messages import shorten


class UnsupportedModelError(DpsweepError, ValueError):
    """A model has a part whose per-example gradients an engine cannot compute exactly."""


def check_model(model: nn.Module, head_parameters: frozenset[str]) -> dict[str, nn.Parameter]:
    """Return the trainable parameters of a model by name, in the model's order.

    Raises:
        UnsupportedModelError: if nothing trains, a head parameter does not train, a layer would use
            statistics of the batch, or two trainable weights share their memory.
    """
    parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
    if not parameters:
        raise UnsupportedModelError("the model has no trainable parameter: unfreeze some")
    if unknown := sorted(head_parameters - parameters.keys()):
        raise UnsupportedModelError(
            f"head parameters: found {shorten(unknown)}; allowed: names of trainable parameters"
        )
    _refuse_batch_statistics(model)
    _refuse_shared_memory(model)
    return parameters


def _refuse_batch_statistics(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if not has_statistics(module):
            continue
        kind = f"layer {name!r} ({type(module).__name__})"
        if module.running_mean is None or module.running_var is None:
            raise UnsupportedModelError(
                f"{kind} has no running statistics, so that it mixes the examples of a batch, and no "
                "example has a gradient of its own: use group or layer normalisation instead"
            )
        _refuse_train_mode(module, kind)
        # The mode may change after the engine is made.
        if _refuse_train_mode not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_refuse_train_mode)


def _refuse_train_mode(module: nn.Module, kind: object) -> None:
    """Refuse statistics of the batch; before a forward pass, ``kind`` is the input."""
    if module.training:
        name = kind if isinstance(kind, str) else f"a {type(module).__name__}"
        raise UnsupportedModelError(
            f"{name} is in train mode, where it mixes the examples of a batch and keeps their "
            "statistics without noise: call model.eval(), so that those of public pretraining stay"
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
