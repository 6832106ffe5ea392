"""Shared code of the pieces of the GPU kit."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import environment


@dataclass(frozen=True)
class Kit:
    """Shared state of the pieces."""

    inputs: Path
    """like the results folder of the study gpu-cifar100, with a folder `packages`"""
    rehearse: bool = False

    @property
    def device(self) -> torch.device:
        """The device of the computations."""
        return torch.device("cpu" if self.rehearse else "cuda")

    @property
    def work(self) -> Path:
        """The folder of trials and checkpoints."""
        return self.inputs / "unfinished"

    def environment(self) -> dict[str, Any]:
        """Return versions and device of a measurement."""
        names = ("torch", "timm", "peft", "transformers", "opacus")
        device = "CPU, a rehearsal" if self.rehearse else torch.cuda.get_device_name()
        described = environment(*filter(find_spec, names), device=device)
        return described | {"cuda": torch.version.cuda}
