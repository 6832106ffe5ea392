"""Where studies are: those that come with the package, and the one that a command is about.

In a clone, the workflow and the studies lie at its top; an installed package has copies of them.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

from dpsweep.base.errors import DpsweepError
from dpsweep.base.litter import is_litter
from dpsweep.config.messages import unknown

_PACKAGE = Path(__file__).parents[1]
_COPIED = _PACKAGE / "project"
IN_CLONE = not _COPIED.is_dir()
"""Whether the package is that of a clone, and not an installed one with copies."""
PROJECT = _PACKAGE.parents[1] if IN_CLONE else _COPIED
"""The folder of ``Snakefile``, ``workflow/``, ``config.yaml`` and ``studies/``."""
CHANGED = ".set.yaml"
"""How the name of a study ends that `dpsweep run --set` has written beside another."""
PAPER = "paper"
"""The name of the paper's study, ``config.yaml``."""


def packaged_studies() -> dict[str, Path]:
    """Return the studies that come with the package, by name."""
    others = sorted((PROJECT / "studies").glob("*.yaml"))
    return {PAPER: PROJECT / "config.yaml"} | {file.stem: file for file in others}


def name_of(study_file: Path) -> str:
    """Return how a study is named on a command line: one that comes with the package by its name."""
    names = {file: name for name, file in packaged_studies().items()}
    return str(study_file) if IN_CLONE else names.get(study_file, str(study_file))


def named_study(name: str, folder: Path) -> Path:
    """Return the file of a study that is named by its path, or as one that comes with the package.

    Args:
        name: a path, or a name such as ``paper`` or ``demo``; a file of that name comes first.
        folder: where a path starts.

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
    """Whether a file is a study, and not another one in YAML."""
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
        if not is_litter(file.name) and not file.name.endswith(CHANGED) and is_study(file)
    ]
    if len(found) == 1:
        return found[0]
    what = ", ".join(file.name for file in found) or "no study"
    raise DpsweepError(
        f"study: found {what} in {folder.resolve()}; allowed: one, or name it: its file, or one of "
        f"{', '.join(packaged_studies())}"
    )


def home(study_file: Path) -> Path:
    """Return the folder at which the paths in a study start.

    It is the folder of the study. Studies of a clone start at the top of the clone, and those that an
    installed package brings where one is.
    """
    file = study_file.resolve()
    if not file.is_relative_to(PROJECT):
        return file.parent
    return PROJECT if IN_CLONE else Path.cwd()


def split_study(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Take the study off the words of a command line: the first one, if it is a file of YAML or a name."""
    first = words[0] if words else ""
    if re.search(r"\.ya?ml$", first) or first in packaged_studies():
        return first, list(words[1:])
    return None, list(words)
