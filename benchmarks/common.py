"""Shared code of the benchmarks: folders, command lines, the version and machine of a measurement."""

import argparse
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dpsweep.base.files import read_json, write_json

REPOSITORY = Path(__file__).parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results"


def command_line(docstring: str | None, **settings: Any) -> argparse.ArgumentParser:
    """Return a command line with the docstring of its module as help."""
    return argparse.ArgumentParser(
        description=docstring, formatter_class=argparse.RawDescriptionHelpFormatter, **settings
    )


def snakemake(folder: Path, *arguments: str) -> list[str]:
    """Return the call of this repository's Snakemake in another folder, without a profile."""
    return [
        *(sys.executable, "-m", "snakemake", "--snakefile", str(REPOSITORY / "Snakefile")),
        *("--directory", str(folder), "--workflow-profile", "none", "--cores", "2"),
        *("--scheduler", "greedy", *arguments),
    ]


def environment(*packages: str, device: str = "", load: bool = True) -> dict[str, Any]:
    """Describe this machine. Call it before the measurement: then the load does not include it.

    Args:
        packages: to record versions of.
        device: that computes.
        load: whether to record the load of the machine.
    """
    return {
        **({"device": device} if device else {}),
        "cores": os.cpu_count(),
        **({"load_before": round(os.getloadavg()[0], 2)} if load else {}),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
    }


def begin_rows(path: Path, described: dict[str, Any], again: bool) -> dict[str, Any]:
    """Return a result without rows, or the earlier one of a file to measure rows of it again.

    Raises:
        SystemExit: the earlier one was measured in another environment.
    """
    if not (again and path.exists()):
        return {"environment": described, "rows": []}
    result: dict[str, Any] = read_json(path)
    kept = result["environment"]
    versions = kept["versions"] | described["versions"]
    here = described | {"load_before": kept["load_before"], "versions": versions}
    if here != kept:
        sys.exit(f"{path} was measured elsewhere, here is {described}: measure all rows")
    return result


def put_row(path: Path, result: dict[str, Any], row: dict[str, Any], titles: list[str]) -> None:
    """Write a result with a row in the place of the earlier one of its title."""
    others = [each for each in result["rows"] if each["title"] != row["title"]]
    result["rows"] = sorted([*others, row], key=lambda each: titles.index(each["title"]))
    write_json(path, result)


# Files that results depend on. Result files are not listed: measurements write them.
_DECISIVE = ("Snakefile", "workflow", "src", "config.yaml", "studies", "benchmarks/**/*.py")


def commit() -> str:
    """Return the current commit, with a mark if a file that results depend on was changed since."""

    def git(*words: str) -> "subprocess.CompletedProcess[str]":
        command = ("git", "-C", str(REPOSITORY), *words)
        return subprocess.run(command, check=False, capture_output=True, text=True)

    name = git("rev-parse", "--short", "HEAD").stdout.strip()
    changed = git("diff", "--quiet", "HEAD", "--", *_DECISIVE).returncode
    return f"{name}, changed" if changed else name


def peak_bytes(process: int | str = "self") -> int:
    """Return the peak memory of a process so far, in bytes (Linux only).

    Raises:
        FileNotFoundError: the process does not exist.
        IndexError: the process has just ended.
    """
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
