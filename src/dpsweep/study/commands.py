"""The commands that messages suggest: the one place that knows how the workflow is called."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

from dpsweep.study.find import IN_CLONE, name_of

DEFAULT_STUDY = Path("config.yaml")
"""The study of a command that names none."""

OPTIONS = "DPSWEEP_SNAKEMAKE_OPTIONS"
"""Environment variable: options that every suggested command needs on this machine (its profile).

The workflow sets it for its jobs.
"""

CALL = "DPSWEEP_CALL"
"""Environment variable: the ``dpsweep run`` that called Snakemake, as it was typed."""


def make_command(study_file: Path, targets: Sequence[Path | str]) -> str:
    """Return the command that makes outputs of a study, whether they are there already or not.

    Args:
        study_file: the study.
        targets: its files, or rules of the workflow.
    """
    # What is there counts as made, whatever it holds, unless it is forced.
    force = ["--force"] if any(Path(target).exists() for target in targets) else []
    if CALL in os.environ or not IN_CLONE:
        words = ["dpsweep", "run", name_of(study_file), *map(str, targets)]
        return shlex.join([*words, *shlex.split(os.environ.get(OPTIONS, "")), *force])
    config = [] if study_file == DEFAULT_STUDY else ["--config", f"study={study_file}"]
    options = shlex.split(os.environ.get(OPTIONS, ""))
    return shlex.join(["snakemake", *options, *force, *config, "--", *map(str, targets)])
