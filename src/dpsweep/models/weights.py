"""Published weights in safetensors files, local or from the Hugging Face hub.

Other formats are not read, because a pickled checkpoint can run code when it is opened.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from dpsweep.base.files import require_content
from dpsweep.models.architecture import Architecture, BackboneError
from dpsweep.models.architectures import create, find_head, seeded, state_without_head
from dpsweep.models.sequence_classifier import SequenceClassifier
from dpsweep.study.messages import brief, shorten

log = logging.getLogger(__name__)


def load_weights(
    architecture: Architecture, path: Path, leave_out: Sequence[str] = ()
) -> dict[str, Tensor]:
    """Return the float32 state of a network with the weights of a safetensors file, without head.

    For timm, its own conversions apply (names of older checkpoints, another image size). Each tensor
    must match a parameter and each parameter a tensor; only the head may differ.

    Args:
        architecture: the network.
        path: of the file.
        leave_out: names of modules in the file that the network does not have.

    Raises:
        BackboneError: the file is missing, not safetensors, or does not fit the architecture.
    """
    if path.suffix != ".safetensors":
        raise BackboneError(
            f"{path}: found a {path.suffix or 'nameless'} file; allowed: .safetensors (pickled "
            "checkpoints can run code when they are opened)"
        )
    try:
        require_content(path)
        tensors = load_file(path)
    except FileNotFoundError:
        raise BackboneError(f"{path}: no such file; put the weights there") from None
    except OSError as error:
        raise BackboneError(f"{path}: cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise BackboneError(f"{path}: not a safetensors file ({error})") from None
    for module in leave_out:
        left_out = [key for key in tensors if key.startswith(f"{module}.")]
        if not left_out:
            modules = sorted({key.rpartition(".")[0] for key in tensors})
            raise BackboneError(
                f"{path}: leave_out: found {module}; allowed: a module of the file, such as {modules[-1]}"
            )
        for key in left_out:
            del tensors[key]

    with seeded(0):
        model = create(architecture, classes=2)
    head = find_head(model)
    if isinstance(model, SequenceClassifier):
        _load_sequence_classifier(model, tensors, path)
        return _finite(model, path)
    # The file's head, if any, has other classes. Our head replaces it, so loading can be strict.
    tensors = {key: value for key, value in tensors.items() if not head.holds(key)}
    tensors |= {key: value for key, value in model.state_dict().items() if head.holds(key)}
    try:
        if architecture.library == "timm":
            import timm  # noqa: PLC0415

            model = timm.create_model(
                architecture.name,
                pretrained=True,
                pretrained_cfg_overlay={"state_dict": tensors, "num_classes": 2},
                num_classes=2,
                **architecture.arguments,
            )
        else:
            model.load_state_dict(tensors)
    except RuntimeError as error:
        raise BackboneError(f"{path}: does not fit {architecture.name}: {brief(error)}") from None
    return _finite(model, path)


def _load_sequence_classifier(
    model: SequenceClassifier, tensors: dict[str, Tensor], path: Path
) -> None:
    """Load with the conversions of transformers: names of older checkpoints, heads of other tasks."""
    from transformers.utils import logging  # noqa: PLC0415

    network: Any = model.network
    verbosity = logging.get_verbosity()
    # Its report on missing and unexpected tensors is long; errors below contain the relevant part.
    logging.set_verbosity_error()
    try:
        loaded, report = type(network).from_pretrained(
            None,
            config=network.config,
            state_dict=tensors,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    finally:
        logging.set_verbosity(verbosity)
    body = f"{network.base_model_prefix}."
    missing = sorted(key for key in report["missing_keys"] if key.startswith(body))
    unexpected = sorted(key for key in report["unexpected_keys"] if key.startswith(body))
    wrong = sorted(str(key) for key in report["mismatched_keys"])
    if missing or unexpected or wrong:
        raise BackboneError(
            f"{path}: does not fit {network.config.model_type}: missing {shorten(missing)}, unexpected "
            f"{shorten(unexpected)}, of another shape {shorten(wrong)}"
        )
    network.load_state_dict(loaded.state_dict())


def _finite(model: nn.Module, path: Path) -> dict[str, Tensor]:
    state = state_without_head(model)
    broken = [key for key, value in state.items() if not torch.isfinite(value).all()]
    if broken:
        raise BackboneError(f"{path}: numbers that are not finite in {shorten(broken)}")
    return state
