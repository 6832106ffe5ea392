"""Environment of a measurement, and the memory that a process has needed."""

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any


def environment(*packages: str, device: str = "", load: bool = True) -> dict[str, Any]:
    """Describe this machine; called before what is measured, so that the load is that of others.

    Args:
        packages: whose versions matter.
        device: what computes.
        load: whether the load of the machine matters.
    """
    return {
        **({"device": device} if device else {}),
        "cores": os.cpu_count(),
        **({"load_before": round(os.getloadavg()[0], 2)} if load else {}),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
    }


def peak_bytes(process: int | str = "self") -> int:
    """The most memory that a process has had so far (on Linux).

    Raises:
        FileNotFoundError: there is no such process.
        IndexError: it has just ended.
    """
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
