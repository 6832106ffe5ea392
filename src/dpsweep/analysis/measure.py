"""The numbers behind a figure or table: found by its family's module, with what is missing."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from dpsweep.study import Study, StudyError
from dpsweep.study.paths import Paths


@dataclass(frozen=True)
class Measured:
    """A target and its numbers.

    Attributes:
        settings: the target's section of the study.
        family: the module of its family, which also shows the numbers.
        numbers: what is drawn or written.
        missing: how many result files were not there.
    """

    settings: Any
    family: Any
    numbers: pd.DataFrame
    missing: int


def measure(
    study: Study, paths: Paths, target: str, targets: Mapping[str, Any], package: str
) -> Measured:
    """Compute the numbers of a figure or table; with partial paths, of the results that are there.

    Args:
        study: the study.
        paths: its files.
        target: the name of a figure or table.
        targets: the section of the study that it should stand in.
        package: where a module for every family is, for example ``dpsweep.figures``.

    Raises:
        StudyError: there is no such target.
        MissingResultsError: results are absent (and the paths are not partial).
    """
    if target not in targets:
        kind = package.rpartition(".")[2].removesuffix("s")
        raise StudyError(f"no {kind} is called {target!r}; allowed: {', '.join(targets) or 'none'}")
    settings = targets[target]
    family = import_module(f"{package}.{settings.family}")
    missing: list[Path] | None = [] if paths.partial else None
    numbers = family.measure(study, paths, settings, missing)
    return Measured(settings, family, numbers, len(set(missing or ())))
