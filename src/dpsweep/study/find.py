"""Finding studies: those that come with the package, and the study of a command.

A clone has the workflow and the studies at its top; an installed package has copies of them.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from dpsweep.base.errors import DpsweepError
from dpsweep.config.messages import unknown

_PACKAGE = Path(__file__).parents[1]
_COPIED = _PACKAGE / "project"
IN_CLONE = not _COPIED.is_dir()
"""Whether this is the package of a clone, not an installed one with copies."""
PROJECT = _PACKAGE.parents[1] if IN_CLONE else _COPIED
"""The folder of ``Snakefile``, ``workflow/``, ``config.yaml`` and ``studies/``."""
CHANGED = ".set.yaml"
"""The end of the names of the studies that `dpsweep run --set` writes."""
PAPER = "paper"
"""The name of the paper's study, ``config.yaml``."""


def packaged_studies() -> dict[str, Path]:
    """Return the studies that come with the package, by name."""
    others = sorted((PROJECT / "studies").glob("*.yaml"))
    return {PAPER: PROJECT / "config.yaml"} | {file.stem: file for file in others}


def name_of(study_file: Path) -> str:
    """Return the word for a study on a command line: its path, or the name of one of the package."""
    names = {file: name for name, file in packaged_studies().items()}
    return str(study_file) if IN_CLONE else names.get(study_file, str(study_file))


def named_study(name: str, folder: Path) -> Path:
    """Return the file of a study.

    Args:
        name: a path, or a name such as ``paper`` or ``demo``; a file of that name comes first.
        folder: where a relative path starts.

    Raises:
        DpsweepError: there is no such file, and no study of this name.
    """
    file = folder / name
    if file.is_file():
        return file
    if re.search(r"[/\\]|\.ya?ml$", name):
        there = sorted(each.name for each in file.parent.glob("*.y*ml"))
        if there and not os.path.lexists(file):
            raise DpsweepError(f"study: no such file as {file}: {unknown(file.name, there)}")
        return file
    if name not in packaged_studies():
        raise DpsweepError(f"study: {unknown(name, packaged_studies())}, or the path of a file")
    return packaged_studies()[name]


def is_study(file: Path) -> bool:
    """Return whether a file is a study, not another file in YAML."""
    return file.is_file() and bool(
        re.search(
            r"^(extends|sweeps):", file.read_text(encoding="utf-8", errors="replace"), re.MULTILINE
        )
    )


def only_study(folder: Path) -> Path:
    """Return the only study in a folder.

    Raises:
        DpsweepError: there is none, or there are several.
    """
    found = [
        file
        for pattern in ("*.yaml", "*.yml")
        for file in sorted(folder.glob(pattern))
        if not file.name.startswith(".") and not file.name.endswith(CHANGED) and is_study(file)
    ]
    if len(found) == 1:
        return found[0]
    what = ", ".join(file.name for file in found) or "no study"
    raise DpsweepError(
        f"study: found {what} in {folder.resolve()}; allowed: one, or name it: its file, or one of "
        f"{', '.join(packaged_studies())}"
    )


def home(study_file: Path) -> Path:
    """Return the folder that the paths in a study are relative to.

    It is the folder of the study. For a study inside of a clone it is the top of the clone; for a study of
    an installed package, the current folder.
    """
    file = study_file.resolve()
    if not file.is_relative_to(PROJECT):
        return file.parent
    return PROJECT if IN_CLONE else Path.cwd()


def split_study(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Split off the first word of a command line, if it is a YAML file or the name of a study."""
    first = words[0] if words else ""
    if re.search(r"\.ya?ml$", first) or first in packaged_studies():
        return first, list(words[1:])
    return None, list(words)
