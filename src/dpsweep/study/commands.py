"""The commands that messages suggest: the one place that knows how the workflow is called."""

import os
import shlex
from collections.abc import Sequence
from pathlib import Path

DEFAULT_STUDY = Path("config.yaml")
"""The study of a command that names none."""

OPTIONS = "DPSWEEP_SNAKEMAKE_OPTIONS"
"""Environment variable: options that every suggested command needs on this machine (its profile).

The workflow sets it for its jobs.
"""


def make_command(study_file: Path, targets: Sequence[Path | str]) -> str:
    """Return the command that makes outputs of a study, whether they are there already or not.

    Args:
        study_file: the study.
        targets: its files, or rules of the workflow.
    """
    # What is there counts as made, whatever it holds, unless it is forced.
    force = ["--force"] if any(Path(target).exists() for target in targets) else []
    config = [] if study_file == DEFAULT_STUDY else ["--config", f"study={study_file}"]
    options = shlex.split(os.environ.get(OPTIONS, ""))
    return shlex.join(["snakemake", *options, *force, *config, "--", *map(str, targets)])
