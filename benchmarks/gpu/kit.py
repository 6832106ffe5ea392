"""What the pieces of the GPU kit share."""

import importlib.util
import os
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True)
class Kit:
    """What the pieces share."""

    inputs: Path
    """like the results folder of the study gpu-cifar100, with a folder `packages`"""
    rehearse: bool = False

    @property
    def device(self) -> "torch.device":
        """Where to compute."""
        import torch  # noqa: PLC0415

        return torch.device("cpu" if self.rehearse else "cuda")

    @property
    def work(self) -> Path:
        """For trials and checkpoints."""
        return self.inputs / "unfinished"


def environment(device: "torch.device") -> dict[str, Any]:
    """What was measured with what."""
    import torch  # noqa: PLC0415

    names = ("torch", "timm", "peft", "transformers", "opacus")
    versions = {name: version(name) for name in names if importlib.util.find_spec(name)}
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name() if on_gpu else "CPU, a rehearsal",
        "cuda": torch.version.cuda,
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "versions": versions,
    }
