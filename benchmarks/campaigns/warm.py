"""Fast calls of Snakemake: forks of a process that has imported everything.

A campaign makes hundreds of short runs. Imports take most of the processor time of a short run: those of
Snakemake, and those of the server that runs the commands of its jobs (`dpsweep.cli.preload`). Here both are
forked. Everything else is as in a call from a shell: a separate session, the server as a child of Snakemake,
the commands of the jobs, signals and exit status.
"""

import atexit
import multiprocessing
import os
import pkgutil
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from unittest import mock

import snakemake.cli

import dpsweep
from dpsweep.cli import preload

LIBRARIES = ("matplotlib.pyplot", "opacus.validators", "pyarrow.parquet", "timm", "torchvision")
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


class Run:
    """A running call, with methods as in `subprocess.Popen`."""

    def __init__(self, process: ForkServerProcess) -> None:
        self._process = process
        assert process.pid is not None
        self.pid = process.pid

    def poll(self) -> int | None:
        """Return the exit status, the negative number of the signal that ended it, or None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit status.

        Raises:
            TimeoutExpired: the call is still running.
        """
        self._process.join(timeout)
        if (status := self.poll()) is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired("snakemake", timeout)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal to Snakemake, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def start(arguments: list[str], folder: Path, environment: dict[str, str], said: Path) -> Run:
    """Call Snakemake.

    Args:
        arguments: after `snakemake`.
        folder: working directory.
        environment: all environment variables.
        said: the file for its output.
    """
    context = multiprocessing.get_context("forkserver")
    modules = pkgutil.walk_packages(dpsweep.__path__, "dpsweep.")
    context.set_forkserver_preload(
        [__name__, *LIBRARIES, *(each.name for each in modules if "__main__" not in each.name)]
    )
    os.environ.update(_ENVIRONMENT)
    process = context.Process(target=_call, args=(arguments, folder, environment, said))
    process.start()
    run = Run(process)
    # Wait until it has its own process group, for signals.
    with suppress(ProcessLookupError):
        while run.poll() is None and os.getpgid(run.pid) != run.pid:
            time.sleep(0.01)
    return run


def _call(arguments: list[str], folder: Path, environment: dict[str, str], said: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    with said.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    sys.argv = ["snakemake", *arguments]
    os.setsid()
    server = _fork_server()
    try:
        with mock.patch.object(preload, "start", lambda: os.environ.update(server)):
            snakemake.cli.main()
    finally:
        atexit._run_exitfuncs()  # multiprocessing does not call it


def _fork_server() -> dict[str, str]:
    """Start a server as `preload.start` does, but in a fork; return its address."""
    address = Path(tempfile.mkdtemp(prefix="dpsweep-")) / "socket"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(address))
    listener.listen(socket.SOMAXCONN)
    theirs, ours = os.pipe()
    if os.fork() == 0:
        os.close(
            ours
        )  # the server ends when Snakemake ends, which closes the other end of the pipe
        sys.stdin = os.fdopen(os.dup2(theirs, 0))
        try:
            preload.serve(listener)
        finally:
            shutil.rmtree(address.parent, ignore_errors=True)
            os._exit(0)
    os.close(theirs)
    listener.close()
    return {preload.ADDRESS: str(address), preload.STARTED_BY: str(os.getpid())}
