"""Which parameters of a network go into which file of a release, and under which names."""

from torch import Tensor, nn

from dpsweep.models.architectures import find_head
from dpsweep.models.build import trainable_parameters

# transformers' networks lie inside of dpsweep's wrapper; a reader of the release has no wrapper.
_WRAPPER = "network."


def outer_name(name: str) -> str:
    """The name of a parameter or layer that a reader of the release sees."""
    return name.removeprefix(_WRAPPER)


def head_layers(model: nn.Module) -> list[str]:
    """The linear layers of a model's head, by the names that a reader of the release sees."""
    head = find_head(model)
    return sorted(
        outer_name(name)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and head.holds(f"{name}.weight")
    )


def split_state(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split a model's state in trained and frozen parameters, by the names that a reader sees."""
    own = trainable_parameters(model).keys()
    trained: dict[str, Tensor] = {}
    frozen: dict[str, Tensor] = {}
    for name, each in model.state_dict().items():
        (trained if name in own else frozen)[outer_name(name)] = each
    return trained, frozen
