"""The start of several processes that train together on one machine, each on its own GPU or CPU core.

The launching process does not train. It passes signals on, and ends all processes if one fails; they end if
it is killed. So a training job has the same signals, exit statuses and logs with any number of processes.
"""

import logging
import math
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
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist

from dpsweep.base.errors import start_log
from dpsweep.base.gpus import visible_gpus
from dpsweep.training import job
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
        statuses = _run(count, Path(folder), function, arguments)
        # In the order of their ends; the cause comes before processes that have noticed the end of another.
        answers = {rank: _answer(Path(folder), rank, count, statuses[rank]) for rank in statuses}
    errors = [each for each in answers.values() if isinstance(each, Exception)]
    for error in sorted(errors, key=lambda each: isinstance(each, OtherProcessError)):
        raise error
    if stops := set(statuses.values()) & {job.EXIT_AGAIN, job.EXIT_TERMINATED}:
        raise job.Interrupted(max(stops))
    return cast("Value", answers[0])


def _run(count: int, folder: Path, function: Callable[..., Any], arguments: Any) -> dict[int, int]:
    """Run the processes to their end, or to some seconds after one has failed; return statuses by rank."""
    context = get_context("spawn")
    members = [
        context.Process(
            target=_member, args=(rank, count, folder, function, arguments), daemon=True
        )
        for rank in range(count)
    ]

    def forward(number: int, frame: FrameType | None) -> None:
        if callable(watch := before[signal.Signals(number)]):
            watch(number, frame)
        for each in members:
            if each.pid is not None and each.is_alive():
                os.kill(each.pid, number)

    running: dict[Any, int] = {}
    statuses: dict[int, int] = {}
    until = math.inf
    # A signal that comes now waits until there are processes to send it to.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    before = {number: signal.getsignal(number) for number in _FORWARDED}
    for number in _FORWARDED:
        signal.signal(number, forward)
    try:
        if stop := job.interruption(saved=False):
            raise stop
        for rank, each in enumerate(members):
            each.start()
            running[each.sentinel] = rank
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        while running and (left := until - time.monotonic()) > 0:
            for sentinel in connection.wait(running, None if math.isinf(left) else left):
                rank = running.pop(sentinel)
                members[rank].join()
                statuses[rank] = members[rank].exitcode or 0
                if statuses[rank] not in (0, job.EXIT_AGAIN, job.EXIT_TERMINATED):
                    until = min(until, time.monotonic() + _GRACE_SECONDS)
    finally:
        for each in members:
            if each.pid is not None:
                each.kill()
                each.join()
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
    return statuses


def _answer(folder: Path, rank: int, count: int, status: int) -> Any:
    """Return what a process has returned or raised, or an error if it could not say why it ended."""
    file = _file(folder, rank)
    if file.exists():
        return pickle.loads(file.read_bytes())  # noqa: S301 (written here)
    if status in (job.EXIT_AGAIN, job.EXIT_TERMINATED):
        return None
    if status >= 0:
        return ProcessError(
            f"a process of {count} could not start (exit status {status}); its error is above"
        )
    memory = " (out of memory?)" if status == -signal.SIGKILL else ""
    return ProcessError(
        f"process {rank} of {count} was ended by {signal.Signals(-status).name}{memory}; run the same "
        "command again: it continues from the last saved state"
    )


def _file(folder: Path, rank: int) -> Path:
    return folder / f"answer{rank}"


def _member(
    rank: int, count: int, folder: Path, function: Callable[..., Any], arguments: Any
) -> None:
    """Call the function in a new process of the group; the first one writes its value, each its error."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Slurm signals every process of a job, and the launching process forwards its signal: the second one
    # can come when this process has saved its state. The launching process ends this one.
    for number in (signal.SIGINT, *_FORWARDED):
        signal.signal(number, signal.SIG_IGN)
    start_log(logging.INFO if rank == 0 else logging.ERROR)
    if rank > 0:
        warnings.simplefilter("ignore")  # the first one warns
    job.refuse_network()
    with job.watched():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        try:
            _join(rank, count, folder)
            value = function(*arguments)
            _file(folder, rank).write_bytes(pickle.dumps(value if rank == 0 else None))
            dist.destroy_process_group()
        except Exception as error:
            error.add_note(f"In process {rank} of {count}:\n{traceback.format_exc()}")
            _file(folder, rank).write_bytes(_pickled(error))
            sys.stderr.flush()
            os._exit(1)  # NCCL's threads may wait for the others
        except job.Interrupted as stop:
            sys.stderr.flush()
            # Threads of gloo that still run as Python ends would abort the process.
            os._exit(cast("int", stop.code))


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
    # A process that ends before the others have met it would break their connections.
    dist.all_reduce(torch.zeros(1))


def _pickled(error: Exception) -> bytes:
    try:
        content = pickle.dumps(error)
        pickle.loads(content)  # noqa: S301 (written here)
    except Exception:
        return pickle.dumps(ProcessError(f"{type(error).__name__}: {error}"))
    return content


def _end_with_parent() -> None:
    """End this process with the one that has started it, also if that one is killed."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
    os._exit(1)
