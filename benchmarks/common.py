"""What benchmarks share: folders, command lines, the version and machine of a measurement."""

import argparse
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"


def command_line(docstring: str | None, **settings: Any) -> argparse.ArgumentParser:
    """A command line that has the docstring of its module as its help."""
    return argparse.ArgumentParser(
        description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter, **settings
    )


def snakemake(folder: Path, *arguments: str) -> list[str]:
    """The call of this repository's Snakemake in another folder, without a profile."""
    return [
        *(sys.executable, "-m", "snakemake", "--snakefile", str(REPOSITORY / "Snakefile")),
        *("--directory", str(folder), "--workflow-profile", "none", "--cores", "2"),
        *("--scheduler", "greedy", *arguments),
    ]


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


# What results depend on; results themselves are written while a measurement runs.
_DECISIVE = ("Snakefile", "workflow", "src", "config.yaml", "studies", "benchmarks/**/*.py")


def commit() -> str:
    """The commit that is tried, with a mark if anything that results depend on was changed since."""

    def git(*words: str) -> "subprocess.CompletedProcess[str]":
        command = ("git", "-C", str(REPOSITORY), *words)
        return subprocess.run(command, check=False, capture_output=True, text=True)

    name = git("rev-parse", "--short", "HEAD").stdout.strip()
    changed = git("diff", "--quiet", "HEAD", "--", *_DECISIVE).returncode
    return f"{name}, changed" if changed else name


def peak_bytes(process: int | str = "self") -> int:
    """The most memory that a process has had so far (on Linux).

    Raises:
        FileNotFoundError: there is no such process.
        IndexError: it has just ended.
    """
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
