"""Which parameters of a network go into which file of a release, and under which names."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from dpsweep.base.files import atomic_path
from dpsweep.models.architectures import find_head, public_statistics
from dpsweep.models.build import trainable_parameters
from dpsweep.release import FROZEN, TRAINED

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


def stated(model: nn.Module) -> dict[str, Any]:
    """Return the fields of a certificate's `Network` that a model decides."""
    return {
        "head_layers": head_layers(model),
        "public_statistics": public_statistics(model),
        "trained_parameters": sum(each.numel() for each in split_state(model)[0].values()),
    }


def save_parameters(model: nn.Module, trained: Mapping[str, Tensor], folder: Path) -> None:
    """Write the trained parameters, and all else of a model's state.

    Args:
        model: as it was before training.
        trained: the values of its trainable parameters, by name.
        folder: where both files go.
    """
    _save(folder / TRAINED, {outer_name(name): each for name, each in trained.items()})
    _save(folder / FROZEN, split_state(model)[1])


def _save(path: Path, state: Mapping[str, Tensor]) -> None:
    plain = {name: each.detach().clone() for name, each in state.items()}
    with atomic_path(path) as partial:
        save_file(plain, partial)
