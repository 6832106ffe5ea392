"""The store of finished trials, by a key of everything that determines them.

One trial is one safetensors file: its record (a JSON object) and its per-step arrays, with a
checksum over both. Small parameters of a cell's best trial are in a second file beside it.
Files appear by atomic rename, so any number of jobs may share a store.
"""

import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from dpsweep.base.files import atomic_path
from dpsweep.training import processes

log = logging.getLogger(__name__)

Arrays = dict[str, np.ndarray[Any, Any]]


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


def read_checked(path: Path) -> tuple[dict[str, Any], Arrays]:
    """Read a file that `write_checked` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged (not safetensors, no checksum, or a wrong one).
    """
    if not path.exists():
        raise FileNotFoundError(path)
    try:
        with safe_open(path, framework="numpy") as stored:
            metadata = stored.metadata() or {}
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        text = metadata["record"]
        checksum = metadata["checksum"]
    except (SafetensorError, KeyError, OSError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if checksum != _digest(text, arrays):
        raise ValueError(f"{path} is damaged: its checksum does not match")
    return json.loads(text), arrays


class TrialStore:
    """Finished trials by key.

    Args:
        folder: of the store; saving the first trial creates it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, key: str) -> Path:
        """Return the file of a trial."""
        return self.folder / key[:2] / f"{key}.safetensors"

    def parameters_path(self, key: str) -> Path:
        """Return the file of a trial's trainable parameters after every epoch."""
        return self.folder / key[:2] / f"{key}.parameters.safetensors"

    def checkpoint_path(self, key: str) -> Path:
        """Return the checkpoint of an unfinished trial."""
        return self.folder / key[:2] / f"{key}.checkpoint"

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the records of all finished trials; skip damaged files."""
        for path in self.folder.glob("*/*.safetensors"):
            with suppress(SafetensorError, OSError, KeyError), safe_open(path, "numpy") as stored:
                record = json.loads((stored.metadata() or {})["record"])
                if "spec" in record:  # the others are parameters
                    yield record

    def load(self, key: str) -> StoredTrial | None:
        """Return a finished trial, or None if there is none.

        A damaged file counts as missing; it is renamed to end in ``.damaged``, with a warning.
        """
        content = processes.on_first(lambda: self._load(self.path(key)))
        return None if content is None else StoredTrial(*content)

    def save(self, key: str, trial: StoredTrial) -> None:
        """Store a finished trial and drop its checkpoint."""
        if processes.rank() == 0:
            write_checked(self.path(key), trial.record, trial.steps)
            self.checkpoint_path(key).unlink(missing_ok=True)

    def load_parameters(self, key: str) -> Arrays | None:
        """Return stored parameters, tensors ``epoch<e>/<name>``, or None; damage as in `load`."""
        content = processes.on_first(lambda: self._load(self.parameters_path(key)))
        return None if content is None else content[1]

    def save_parameters(self, key: str, parameters: Arrays) -> None:
        """Store a trial's trainable parameters, tensors ``epoch<e>/<name>``."""
        if processes.rank() == 0:
            write_checked(self.parameters_path(key), {"trial_key": key}, parameters)

    def drop_parameters(self, key: str) -> None:
        """Delete a trial's parameters and keep its record."""
        self.parameters_path(key).unlink(missing_ok=True)

    @staticmethod
    def _load(path: Path) -> tuple[dict[str, Any], Arrays] | None:
        try:
            return read_checked(path)
        except FileNotFoundError:
            return None
        except ValueError as error:
            damaged = path.with_name(path.name + ".damaged")
            path.replace(damaged)
            log.warning("%s; set aside as %s, the trial is trained again", error, damaged.name)
            return None
