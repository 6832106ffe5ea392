"""The store of finished trials, by a key of everything that determines them.

One trial is one safetensors file: its record (a JSON object) and its per-step arrays, with a
checksum over both. Small parameters of a cell's best trial are in a second file beside it.
Files appear by atomic rename, so any number of jobs may share a store.

A checkpoint has the state of an unfinished trial: after a kill, it resumes to the same result.
"""

import hashlib
import io
import json
import logging
import pickle
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor, nn

from dpsweep.base.files import atomic_path
from dpsweep.study.paths import trial_file
from dpsweep.training import processes
from dpsweep.training.optimizer import PrivateOptimizer

log = logging.getLogger(__name__)

Arrays = dict[str, np.ndarray[Any, Any]]
Value = TypeVar("Value")


@dataclass(frozen=True)
class StoredTrial:
    """A finished trial: scalars and lists in ``record``, arrays of length T in ``steps``."""

    record: dict[str, Any]
    steps: Arrays


def _digest(record: str, arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
    digest = hashlib.sha256(record.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"\0{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        digest.update(array.data)
    return digest.hexdigest()


def write_checked(path: Path, record: Mapping[str, Any], arrays: Arrays) -> None:
    """Write a record and arrays into one safetensors file with a checksum, atomically.

    Equal content gives equal bytes.
    """
    text = json.dumps(record, sort_keys=True)
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    metadata = {"record": text, "checksum": _digest(text, contiguous)}
    with atomic_path(path) as partial:
        save_file(contiguous, partial, metadata=metadata)
        _sort_header(partial)


def _sort_header(path: Path) -> None:
    """Sort the header of a safetensors file, because the library writes metadata in random order."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        content = json.loads(file.read(length))
        header = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        file.seek(8)
        file.write(header.encode().ljust(length))


def read_checked(path: Path) -> tuple[dict[str, Any], Arrays] | None:
    """Read a file that `write_checked` wrote; None if there is none.

    A damaged file counts as missing; it is renamed to end in ``.damaged``, with a warning.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="numpy") as stored:
            metadata = stored.metadata() or {}
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        text = metadata["record"]
        if metadata["checksum"] == _digest(text, arrays):
            return json.loads(text), arrays
        found = "its checksum does not match"
    except (SafetensorError, KeyError, OSError) as error:
        found = str(error)
    damaged = path.with_name(path.name + ".damaged")
    path.replace(damaged)
    log.warning(
        "%s is damaged: %s; set aside as %s, the trial is trained again", path, found, damaged.name
    )
    return None


class TrialStore:
    """Finished trials by key.

    Args:
        folder: of the store; saving the first trial creates it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, key: str) -> Path:
        """Return the file of a trial."""
        return trial_file(self.folder, key)

    def parameters_path(self, key: str) -> Path:
        """Return the file of a trial's trainable parameters after every epoch."""
        return trial_file(self.folder, key, "parameters.safetensors")

    def checkpoint_path(self, key: str) -> Path:
        """Return the checkpoint of an unfinished trial."""
        return trial_file(self.folder, key, "checkpoint")

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the records of all finished trials; skip damaged files."""
        for path in self.folder.glob("*/*.safetensors"):
            with suppress(SafetensorError, OSError, KeyError), safe_open(path, "numpy") as stored:
                record = json.loads((stored.metadata() or {})["record"])
                if "spec" in record:  # the others are parameters
                    yield record

    def load(self, key: str) -> StoredTrial | None:
        """Return a finished trial, or None if there is none; damage as in `read_checked`."""
        content = processes.on_first(lambda: read_checked(self.path(key)))
        return None if content is None else StoredTrial(*content)

    def save(self, key: str, trial: StoredTrial) -> None:
        """Store a finished trial and drop its checkpoint."""
        if processes.rank() == 0:
            write_checked(self.path(key), trial.record, trial.steps)
            self.checkpoint_path(key).unlink(missing_ok=True)

    def load_parameters(self, key: str) -> Arrays | None:
        """Return stored parameters, tensors ``epoch<e>/<name>``, or None; damage as in `read_checked`."""
        content = processes.on_first(lambda: read_checked(self.parameters_path(key)))
        return None if content is None else content[1]

    def save_parameters(self, key: str, parameters: Arrays) -> None:
        """Store a trial's trainable parameters, tensors ``epoch<e>/<name>``."""
        if processes.rank() == 0:
            write_checked(self.parameters_path(key), {"trial_key": key}, parameters)

    def drop_parameters(self, key: str) -> None:
        """Delete a trial's parameters and keep its record."""
        self.parameters_path(key).unlink(missing_ok=True)


# -- checkpoints -------------------------------------------------------------------------------


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
