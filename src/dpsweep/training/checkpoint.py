"""Checkpoints of an unfinished trial: after a kill, it resumes to the same result."""

import io
import logging
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from dpsweep.base.files import atomic_path
from dpsweep.training import processes
from dpsweep.training.optimizer import PrivateOptimizer

log = logging.getLogger(__name__)

Value = TypeVar("Value")


@dataclass
class TrialState:
    """The state of a running trial outside of the model and the optimizer."""

    step: int
    seconds: float
    statistics: list[Tensor]
    epochs: dict[str, Tensor]
    physical_batch: int
    """examples on the device at once"""
    average: dict[str, Tensor] = field(default_factory=dict)
    """of the parameters over the steps, by name; empty if the optimizer has no average"""


def parameters_after(epoch: int, epochs: Mapping[str, Value]) -> dict[str, Value]:
    """Return the parameters after one epoch by name, from arrays ``epoch<e>/<name>``."""
    return _below(f"epoch{epoch}/", epochs)


def final_parameters(epochs: int, arrays: Mapping[str, Value]) -> dict[str, Value]:
    """Return the measured parameters: the average (``average/<name>``), or those of the last epoch."""
    average = _below("average/", arrays)
    return average or parameters_after(epochs, arrays)


def _below(prefix: str, arrays: Mapping[str, Value]) -> dict[str, Value]:
    return {
        name.removeprefix(prefix): value
        for name, value in arrays.items()
        if name.startswith(prefix)
    }


def save_checkpoint(
    path: Path,
    parameters: dict[str, nn.Parameter],
    optimizer: PrivateOptimizer,
    progress: TrialState,
) -> None:
    """Write the state after a step, atomically; of several processes, the first one writes it.

    Args:
        path: the checkpoint.
        parameters: the trainable parameters by name.
        optimizer: its state is saved too.
        progress: the rest of the state.
    """
    if processes.rank() > 0:
        return
    state = {
        "parameters": {name: parameter.detach() for name, parameter in parameters.items()},
        "optimizer": optimizer.state_dict(),
        "progress": vars(progress),
    }
    # If a disk is full, torch's own writer of files raises an error that does not say so.
    content = io.BytesIO()
    torch.save(state, content)
    with atomic_path(path) as partial:
        partial.write_bytes(content.getbuffer())
    log.info("checkpoint at step %d", progress.step)


def load_checkpoint(
    path: Path, parameters: dict[str, nn.Parameter], optimizer: PrivateOptimizer
) -> TrialState | None:
    """Load parameters and optimizer from a checkpoint.

    Returns:
        The rest of the state; None if there is no checkpoint, or if it was damaged or did not match and
        is now deleted.
    """
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
        progress = TrialState(**state["progress"])
        saved = {name: state["parameters"][name] for name in parameters}
        for name, parameter in parameters.items():
            if saved[name].shape != parameter.shape:
                raise ValueError(f"{name} has shape {tuple(saved[name].shape)}")
        optimizer.load_state_dict(state["optimizer"])
    except FileNotFoundError:
        return None
    except (
        *(RuntimeError, pickle.UnpicklingError, EOFError),  # damaged
        *(AttributeError, KeyError, TypeError, ValueError),  # of another version or device
    ) as error:
        log.warning("%s cannot be used (%r): the trial starts again", path, error)
        path.unlink(missing_ok=True)
        return None
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(saved[name])
    log.info("continuing from step %d", progress.step)
    return progress
