"""The options of a run in ``--config`` and the environment, and the commands that messages suggest."""

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpsweep.base.errors import DpsweepError
from dpsweep.study.load import IN_CLONE, name_of, study_path
from dpsweep.study.messages import unknown

DEFAULT_STUDY = Path("config.yaml")
"""The study of a command that names none."""

OPTIONS = "DPSWEEP_SNAKEMAKE_OPTIONS"
"""Environment variable: options that every suggested command needs on this machine (its profile)."""

STUDY = "DPSWEEP_STUDY"
"""Environment variable: the study of a command that names none."""

UNACCOUNTED = "DPSWEEP_UNACCOUNTED"
"""Environment variable: true if the user has asked for sweeps of private data (see `is_true`)."""

SIGNAL = "USR1@120"
"""For ``sbatch``: signal the end of a job 120 seconds before, which is longer than a training step.

An option ``--signal`` of ``sbatch`` (``slurm_extra`` in a profile) wins over ``SBATCH_SIGNAL``."""

_CONFIG = ("study", "targets", "unaccounted")  # the options of --config

RESULTS = "DPSWEEP_RESULTS"
"""Environment variable: the folder of results that the workflow has planned with."""

CALL = "DPSWEEP_CALL"
"""Environment variable: set if ``dpsweep run`` called Snakemake."""


def is_true(name: str, value: object) -> bool:
    """Return a truth value of ``--config`` or of an environment variable.

    Both are text, and every text is true in Python: ``unaccounted=false`` must not be a yes.

    >>> is_true("unaccounted", "1"), is_true("unaccounted", "false")
    (True, False)

    Args:
        name: of the option, for the message.
        value: true or 1 for yes, false or 0 for no; Snakemake makes ``True`` and ``False`` of these words.

    Raises:
        DpsweepError: any other value.
    """
    try:
        return {"true": True, "1": True, "false": False, "0": False}[str(value).lower()]
    except KeyError:
        raise DpsweepError(f"{name}: found {value or 'nothing'}; allowed: true or false") from None


def make_command(study_file: Path, targets: Sequence[Path | str]) -> str:
    """Return the command that makes outputs of a study; it makes existing ones again.

    Args:
        study_file: the study.
        targets: its files, or rules of the workflow.
    """
    # Snakemake takes an existing file for finished, even a damaged one, unless it is forced.
    force = ["--force"] if any(Path(target).exists() for target in targets) else []
    options = shlex.split(os.environ.get(OPTIONS, ""))
    # Snakemake needs the Snakefile of a clone in the working directory; `dpsweep run` brings its own.
    if CALL in os.environ or not IN_CLONE or not Path("Snakefile").exists():
        words = ["dpsweep", "run", name_of(study_file), *map(str, targets)]
        return shlex.join([*words, *(["--"] if options or force else []), *options, *force])
    config = [] if study_file == DEFAULT_STUDY else ["--config", f"study={study_file}"]
    return shlex.join(["snakemake", *options, *force, *config, "--", *map(str, targets)])


def begin(config: Mapping[str, Any]) -> Path:
    """Set environment variables for the jobs of the workflow: study, options, and a PATH with `dpsweep`.

    Args:
        config: the config of Snakemake.

    Returns:
        The file of the study.

    Raises:
        DpsweepError: there is no such option (as in a study that is given as a ``--configfile`` instead of
            by its name), or it has a value of another type.
    """
    for name in config:
        if name not in _CONFIG:
            raise DpsweepError(f"--config: {unknown(name, _CONFIG)} (as study=studies/mine.yaml)")
    permission = UNACCOUNTED, os.environ.get(UNACCOUNTED, "false")
    if "unaccounted" in config:
        permission = "--config unaccounted", config["unaccounted"]
    os.environ[UNACCOUNTED] = str(int(is_true(*permission)))
    for name in ("study", "targets"):
        if not isinstance(value := config.get(name, ""), str):
            raise DpsweepError(f"--config {name}: found {value}; allowed: text that is no number")
    study = study_path(config.get("study", DEFAULT_STUDY))
    os.environ[STUDY] = str(study)
    # Without the signal, jobs of Slurm would lose the work since their last checkpoint at a time limit.
    os.environ.setdefault("SBATCH_SIGNAL", SIGNAL)
    # `dpsweep` is in the folder of this Python, even if the environment is not activated.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), *os.get_exec_path()])
    # Suggested commands repeat the profile of this call.
    profiles, _ = split_profiles(sys.argv[1:])
    os.environ.setdefault(OPTIONS, shlex.join(f"--profile={each}" for each in profiles))
    return study


def split_profiles(options: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the profiles among options of Snakemake, and the other options.

    >>> split_profiles(["--profile", "slurm", "-n"])
    (['slurm'], ['-n'])
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--profile", action="append", default=[])
    given, others = parser.parse_known_args(options)
    return given.profile, others
