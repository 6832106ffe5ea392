"""The start of several processes that train together on one machine, each on its own GPU or CPU core.

The launching process does not train. It passes signals on, and ends all processes if one fails; they end if
it is killed. So a training job has the same signals, exit statuses and logs with any number of processes.
"""

import logging
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import connection, get_context, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from dpsweep.base.errors import start_log
from dpsweep.base.gpus import visible_gpus
from dpsweep.training.job import (
    EXIT_AGAIN,
    EXIT_TERMINATED,
    Interrupted,
    interruption,
    refuse_network,
    watched,
)
from dpsweep.training.processes import OtherProcessError, ProcessError

Value = TypeVar("Value")

_FORWARDED = (signal.SIGTERM, signal.SIGUSR1)
# After one process has failed, the others may say why for so long; NCCL can wait for ever.
_GRACE_SECONDS = 5.0


def launch(gpus: int, function: Callable[..., Value], *arguments: Any) -> Value:
    """Call a function in as many new processes as the job has GPUs; with ``gpus`` = 1, in this process.

    Without any GPU, ``gpus`` processes train on the CPU.

    Args:
        gpus: the number that the study asks for.
        function: of a module; the new processes form a group of torch.distributed (see `processes`).
        arguments: of the function; they are pickled.

    Returns:
        What the function returns in the first process.

    Raises:
        Interrupted: a signal asked to stop.
        ProcessError: a process was killed.
        Exception: of the function, in any process.
    """
    if gpus == 1:
        return function(*arguments)
    count = len(visible_gpus()) or gpus
    if count < gpus:
        logging.getLogger(__name__).warning(
            "%d GPUs instead of %d: training is slower", count, gpus
        )
    with tempfile.TemporaryDirectory(prefix="dpsweep-group-") as folder:
        return cast("Value", _Group(count, Path(folder), function, arguments).run())


class _Group:
    """The processes, seen from the one that has started them."""

    def __init__(
        self, count: int, folder: Path, function: Callable[..., Any], arguments: Any
    ) -> None:
        context = get_context("spawn")
        pipes = [context.Pipe(duplex=False) for _ in range(count)]
        self._answers = [answer for answer, _ in pipes]
        self._ends = [end for _, end in pipes]
        self._processes = [
            context.Process(
                target=_member, args=(rank, count, folder, end, function, arguments), daemon=True
            )
            for rank, end in enumerate(self._ends)
        ]
        self._values: list[Any] = []
        self._errors: list[Exception] = []

    def run(self) -> Any:
        """Start the processes, wait for their end, and return or raise what they have sent."""
        # A signal that comes now waits until there are processes to send it to.
        signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
        before = {each: signal.signal(each, self._forward) for each in _FORWARDED}
        try:
            if stop := interruption(saved=False):
                raise stop
            for process, end in zip(self._processes, self._ends, strict=True):
                process.start()
                end.close()  # the process has its own
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
            self._wait()
        finally:
            for process in self._processes:
                if process.pid is not None:
                    process.kill()
                    process.join()
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        # The cause comes before the errors of processes that have noticed the end of another one.
        for error in sorted(self._errors, key=lambda each: isinstance(each, OtherProcessError)):
            raise error
        status = max(process.exitcode or 0 for process in self._processes)
        if status in (EXIT_AGAIN, EXIT_TERMINATED):
            raise Interrupted(status)
        if status or not self._values:
            raise ProcessError(
                f"a process of {len(self._processes)} could not start (exit status {status}); its error "
                "is above"
            )
        return self._values[0]

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        for process in self._processes:
            if process.pid is not None and process.is_alive():
                os.kill(process.pid, number)

    def _wait(self) -> None:
        """Read the answers until all processes have ended, or some seconds after one has failed."""
        running = {process.sentinel: rank for rank, process in enumerate(self._processes)}
        answers = list(self._answers)
        until: float | None = None
        while running:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not (ready := connection.wait([*running, *answers], left)):
                return
            for answer in [each for each in answers if each in ready]:
                self._read(answer, answers)
            for sentinel in running.keys() & set(ready):
                rank = running.pop(sentinel)
                self._processes[rank].join()
                if self._processes[rank].exitcode not in (0, EXIT_AGAIN, EXIT_TERMINATED):
                    until = until or time.monotonic() + _GRACE_SECONDS
                    self._note_end(rank)
        for answer in list(answers):
            self._read(answer, answers)

    def _read(self, answer: Connection, answers: list[Connection]) -> None:
        try:
            sent = answer.recv()
        except EOFError:
            answers.remove(answer)
            return
        (self._errors if isinstance(sent, Exception) else self._values).append(sent)

    def _note_end(self, rank: int) -> None:
        """Note the end of a process that could not say why."""
        status = self._processes[rank].exitcode or 0
        if status < 0:
            memory = " (out of memory?)" if status == -signal.SIGKILL else ""
            self._errors.append(
                ProcessError(
                    f"process {rank} of {len(self._processes)} was ended by "
                    f"{signal.Signals(-status).name}{memory}; run the same command again: it "
                    "continues from the last saved state"
                )
            )


def _member(
    rank: int,
    count: int,
    folder: Path,
    answer: Connection,
    function: Callable[..., Any],
    arguments: Any,
) -> None:
    """Call the function in a new process of the group; the first one sends its value, each its error."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Slurm signals every process of a job, and the launching process forwards its signal: the second one
    # can come when this process has saved its state. The launching process ends this one.
    for number in (signal.SIGINT, *_FORWARDED):
        signal.signal(number, signal.SIG_IGN)
    start_log(logging.INFO if rank == 0 else logging.ERROR)
    if rank > 0:
        warnings.simplefilter("ignore")  # the first one warns
    refuse_network()
    with watched():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        try:
            _join(rank, count, folder)
            value = function(*arguments)
            if rank == 0:
                answer.send(value)
            dist.destroy_process_group()
        except Exception as error:
            error.add_note(f"In process {rank} of {count}:\n{traceback.format_exc()}")
            answer.send(_sendable(error))
            answer.close()
            sys.stderr.flush()
            os._exit(1)  # NCCL's threads may wait for the others


def _join(rank: int, count: int, folder: Path) -> None:
    """Make the group of the processes of this machine."""
    # gloo would look for the machine's name, which compute nodes may not know.
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if gpu else "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=count,
        timeout=timedelta(days=7),  # the launching process notices the end of each
    )


def _sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 (written here)
    except Exception:
        return ProcessError(f"{type(error).__name__}: {error}")
    return error


def _end_with_parent() -> None:
    """End this process with the one that has started it, also if that one is killed."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
    os._exit(1)
