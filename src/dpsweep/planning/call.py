"""A call of the workflow: the study that it names, its lock, and how Ctrl-C ends it."""

import argparse
import atexit
import os
import re
import shlex
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import psutil

from dpsweep.base.errors import DpsweepError
from dpsweep.study import commands

# How Snakemake says that a job ended by Ctrl-C, which reaches all processes of a terminal.
_INTERRUPTED = re.compile(r"Signals\.SIGINT|exit status 130\b")
_STUDY = re.compile(r"^(extends|sweeps):", re.MULTILINE)
_ctrl_c = threading.Event()
_jobs_run = threading.Event()


# -- what is called --------------------------------------------------------------------------


def called_again() -> str:
    """The command that goes on with this call."""
    return os.environ.get(commands.CALL, shlex.join(["snakemake", *sys.argv[1:]]))


def study_file(config: Mapping[str, Any], configfiles: Sequence[Path]) -> str:
    """The study of a call: it is named with ``--config study=``, but habit says ``--configfile``.

    Args:
        config: of Snakemake.
        configfiles: that it was read from.

    Raises:
        DpsweepError: several studies are named, or none that can be found.
    """
    if "study" in config or config.keys().isdisjoint({"extends", "sweeps"}):
        return str(config.get("study", commands.DEFAULT_STUDY))
    studies = [file for file in configfiles if _STUDY.search(Path(file).read_text("utf-8"))]
    if len(studies) != 1:
        raise DpsweepError("name one study: snakemake --config study=studies/mine.yaml -- all")
    return str(studies[0])


def prepare_environment() -> None:
    """Let the jobs of this call find ``dpsweep``, and say how the commands that they suggest begin."""
    # It lies beside this Python, whether or not its environment is activated.
    beside = str(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join([beside, *os.get_exec_path()])
    # Suggested commands are for this machine: they repeat its profile and its site settings.
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("--profile", action="append", default=[])
    options.add_argument("--configfile", "--configfiles", nargs="+", default=[])
    given, _ = options.parse_known_args()
    words = [f"--profile={profile}" for profile in given.profile]
    words += ["--configfile", *given.configfile] if given.configfile else []
    os.environ.setdefault(commands.OPTIONS, shlex.join(words))


# -- its lock --------------------------------------------------------------------------------


class CallFile:
    """Says that a call is there, in a file beside Snakemake's lock, until the call ends.

    Snakemake's lock outlives a Snakemake that is killed outright. A lock that is there without the file of a
    call, or with files of calls of this machine that are gone, is removed, and the same command goes on.

    Args:
        folder: of Snakemake's locks.
    """

    def __init__(self, folder: Path) -> None:
        folder = folder.absolute()
        self._file = folder / f"{socket.gethostname()} {os.getpid()}.call"
        if all(map(_is_over, folder.glob("*.call"))):
            shutil.rmtree(folder, ignore_errors=True)
        self.write()
        atexit.register(self._file.unlink, missing_ok=True)
        self._began = self._file.stat().st_mtime_ns

    def write(self) -> None:
        """Write the file; again, because Snakemake removes the folder when another call ends."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(_begin(psutil.Process()))

    def has_begun(self, logs: Sequence[str]) -> bool:
        """Whether a job of this call has written to one of its logs."""
        files = (Path(log) for log in logs)
        return any(file.exists() and file.stat().st_mtime_ns > self._began for file in files)


def _begin(process: psutil.Process) -> str:
    """When a process began: its number is given again, for example after the machine was started anew.

    Since the start of the machine: the time of day changes for all processes if the clock is set.
    """
    return f"{process.create_time() - psutil.boot_time():.1f}"


def _is_over(call: Path) -> bool:
    host, process = call.stem.split()
    if host != socket.gethostname():
        return False
    try:
        return _begin(psutil.Process(int(process))) != call.read_text()
    except (psutil.NoSuchProcess, FileNotFoundError):
        return True


# -- Ctrl-C ----------------------------------------------------------------------------------


def watch_for_interrupts() -> None:
    """Let Ctrl-C end the plan of a run with one message, and later be remembered; see `interrupted`."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return  # a process in the background ignores it

    def end_or_remember(number: int, frame: FrameType | None) -> None:
        if not _jobs_run.is_set():
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            end_interrupted()
        _ctrl_c.set()
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, end_or_remember)


def jobs_begin() -> None:
    """From now on, Ctrl-C lets Snakemake end the jobs of the run first."""
    _jobs_run.set()


def end_interrupted() -> NoReturn:
    """End as a command that Ctrl-C has ended, and say which command goes on.

    Raises:
        SystemExit: always.
    """
    sys.stderr.write(f"interrupted; the same command continues:\n  {called_again()}\n")
    sys.stderr.flush()
    sys.exit(128 + signal.SIGINT)


def interrupted(message: str = "", seconds: float = 0.0) -> bool:
    """Whether Ctrl-C has ended this run, or the job that Snakemake's message is about.

    Args:
        message: of Snakemake.
        seconds: to wait for Ctrl-C, which may reach the job before this process.
    """
    return _INTERRUPTED.search(message) is not None or _ctrl_c.wait(seconds)
