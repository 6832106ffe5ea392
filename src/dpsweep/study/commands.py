"""The commands that messages suggest: the one place that knows how the workflow is called."""

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpsweep.base.errors import DpsweepError
from dpsweep.study.find import IN_CLONE, name_of

DEFAULT_STUDY = Path("config.yaml")
"""The study of a command that names none."""

OPTIONS = "DPSWEEP_SNAKEMAKE_OPTIONS"
"""Environment variable: options that every suggested command needs on this machine (its profile).

The workflow sets it for its jobs.
"""

STUDY = "DPSWEEP_STUDY"
"""Environment variable: the study of a command that names none. The workflow sets it for its jobs."""

UNACCOUNTED = "DPSWEEP_UNACCOUNTED"
"""Environment variable: the user has asked for sweeps of private data. The workflow sets it for its jobs."""

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


def begin(config: Mapping[str, Any]) -> Path:
    """Begin a call of the workflow: tell its jobs the study, where `dpsweep` is, and how they may call again.

    Args:
        config: of Snakemake.

    Returns:
        The file of the study.

    Raises:
        DpsweepError: the study is not named, but given as a ``--configfile``.
    """
    if "study" not in config and {"extends", "sweeps"} & config.keys():
        raise DpsweepError("a study is named: snakemake --config study=studies/mine.yaml -- all")
    if config.get("unaccounted"):
        os.environ[UNACCOUNTED] = "1"
    study = Path(config.get("study", DEFAULT_STUDY))
    os.environ[STUDY] = str(study)
    # It lies beside this Python, whether or not its environment is activated.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()])
    # Suggested commands are for this machine: they repeat its profile.
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("--profile", action="append", default=[])
    given, _ = options.parse_known_args()
    os.environ.setdefault(OPTIONS, shlex.join(f"--profile={each}" for each in given.profile))
    return study
