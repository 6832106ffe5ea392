"""The processes of a training job: how a signal stops them, and several that train one model together.

While `watched` is active, SIGTERM and SIGUSR1 are only recorded. The running trial checks for them at
its next step, saves its state and raises `Interrupted`, which ends the process:

* SIGUSR1 announces a time limit (Slurm's ``--signal``): exit status 75, *run the command again*;
* SIGTERM ends the job for good (scancel, preemption, shutdown): exit status 143.

In both cases the next call for the same cell continues from the saved step. SIGINT ends the job at
once, and the next call continues from the last checkpoint.

Compute nodes often have no network, and a job must not wait. Datasets and weights are downloaded when
they are prepared. After `refuse_network`, a library that tries to connect during a trial (for a newer
revision, a missing file, usage statistics) gets a `NetworkRefusedError`.

**Several processes** train on one machine, each on its own GPU or CPU core. Every process has the whole
model, draws the same batch from the same stream, and computes the gradients of every k-th micro-batch.
`add_up` sums the clipped gradients of all processes. Then every process adds the same noise of the same
stream and takes the same step: no process has a model with less noise, and nothing is sent but sums.
Without a process group of torch.distributed, all functions here are those of one process.

The process that launches them does not train. It passes signals on, and ends all processes if one fails;
they end if it is killed. So a training job has the same signals, exit statuses and logs with any number of
processes.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import islice
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor

from dpsweep.base.errors import DpsweepError, start_log
from dpsweep.base.gpus import visible_gpus
from dpsweep.gradients.engines import first_line, is_out_of_memory

log = logging.getLogger(__name__)

Value = TypeVar("Value")

EXIT_AGAIN = 75
"""Exit status (EX_TEMPFAIL): the state is saved, and the same command continues from it."""

EXIT_TERMINATED = 128 + signal.SIGTERM
"""Exit status of a process that SIGTERM ended."""

_received: signal.Signals | None = None


class Interrupted(SystemExit):
    """The end of the process, with an exit status that gives the reason; no error is printed."""


@contextmanager
def watched() -> Iterator[None]:
    """Record SIGTERM and SIGUSR1 for `interruption` (main thread only)."""

    def record(number: int, _frame: FrameType | None) -> None:
        global _received  # noqa: PLW0603 (a signal is an event of the whole process)
        # SIGTERM is final: a later SIGUSR1 must not request another run.
        if _received != signal.SIGTERM:
            _received = signal.Signals(number)

    global _received  # noqa: PLW0603
    _received = None
    before = {each: signal.signal(each, record) for each in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    except Interrupted as stop:
        log.info(
            "stopped by %s, exit status %s", _received.name if _received else "request", stop.code
        )
        # The process ends. If another signal ended it, its status would not be that of a saved state.
        before = dict.fromkeys(before, signal.SIG_IGN)
        raise
    except KeyboardInterrupt:
        log.info("stopped by SIGINT, exit status %s", 128 + signal.SIGINT)
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _received = None


def interruption(*, saved: bool) -> Interrupted | None:
    """Return the exception to raise once a signal asks to stop, or None before that.

    Args:
        saved: whether this process has saved any progress. Without progress, another call with the
            same time limit would fail too, so the status is not `EXIT_AGAIN`.
    """
    urgency = (None, signal.SIGUSR1, signal.SIGTERM)
    # All processes that train together stop after the same step.
    received = urgency[largest(urgency.index(_received))]
    if received is None:
        return None
    again = saved and received == signal.SIGUSR1
    return Interrupted(EXIT_AGAIN if again else EXIT_TERMINATED)


# -- the network -------------------------------------------------------------------------------

_CONNECTING = frozenset({"socket.connect", "socket.getaddrinfo", "socket.gethostbyname"})


class NetworkRefusedError(OSError):
    """A connection that a training job tried to open."""


def refuse_network() -> None:
    """Refuse every later connection of Python code in this process, but allow Unix sockets."""
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _CONNECTING:
        return
    if event == "socket.connect" and arguments[0].family == socket.AF_UNIX:
        return
    raise NetworkRefusedError(
        f"{event} {arguments[-1] if event == 'socket.connect' else arguments[0]}: a training job "
        "reads prepared files only; fetch what it needs with prepare-dataset or prepare-backbone"
    )


# -- what processes send each other ------------------------------------------------------------

# The default group, and the group for values on the CPU, which NCCL does not send.
_groups: tuple[Any, Any] | None = None


class ProcessError(DpsweepError):
    """Processes that cannot go on together: one has failed or ended, or they differ."""


class OtherProcessError(ProcessError):
    """The failure of another process, which knows its cause."""


def count() -> int:
    """Return the number of processes that train together; 1 without a process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if count() > 1 else 0


def share(items: Iterable[Value]) -> Iterable[Value]:
    """Return every k-th of some items, for k processes.

    >>> list(share("abc"))  # one process
    ['a', 'b', 'c']
    """
    if isinstance(items, Sequence):
        return items[rank() :: count()]  # the others are not loaded
    return islice(items, rank(), None, count())


def rows_of_share(examples: int) -> Tensor:
    """Return this process's part of the indices of some examples, int64; `joined` puts parts together."""
    return torch.arange(examples).tensor_split(count())[rank()]


def joined(part: Tensor, dim: int = 0) -> Tensor:
    """Return the parts of all processes as one tensor, in the order of the processes.

    Args:
        part: of this process; parts may have different lengths.
        dim: along which they are joined.
    """
    if count() == 1:
        return part
    parts: list[Any] = [None] * count()
    with _connection():
        dist.all_gather_object(parts, part.cpu(), group=_cpu_group())
    return torch.cat(parts, dim=dim).to(part.device)


def add_up(vector: Tensor) -> None:
    """Replace a tensor by its sum over all processes, the same bits in each of them."""
    if count() > 1:
        with _connection():
            dist.all_reduce(vector, group=_cpu_group() if vector.device.type == "cpu" else None)


def largest(value: int) -> int:
    """Return the largest of the processes' integers."""
    if count() == 1:
        return value
    found = torch.tensor(value)
    with _connection():
        dist.all_reduce(found, dist.ReduceOp.MAX, group=_cpu_group())
    return int(found)


def smallest(value: int) -> int:
    """Return the smallest of the processes' integers."""
    return -largest(-value)


def on_first(compute: Callable[[], Value]) -> Value:
    """Call a function in the first process only, and return its value in all."""
    if count() == 1:
        return compute()
    values: list[Any] = [compute() if rank() == 0 else None]
    with _connection():
        dist.broadcast_object_list(values, group=_cpu_group())
    return cast("Value", values[0])


def require_equal(when: str, values: Mapping[str, Any]) -> None:
    """Refuse to go on unless the processes have equal values.

    Args:
        when: for the message, such as "after epoch 3".
        values: by what they are.

    Raises:
        ProcessError: they differ; every process raises it.
    """
    if count() == 1:
        return
    found: list[Any] = [None] * count()
    with _connection():
        dist.all_gather_object(found, dict(values), group=_cpu_group())
    for number, theirs in enumerate(found):
        if differing := [name for name in found[0] if theirs.get(name) != found[0][name]]:
            raise ProcessError(
                f"{when}, processes 0 and {number} of {count()} have different {' and '.join(differing)}, so "
                "they do not train one model together; allowed: equal ones in all processes"
            )


@contextmanager
def all_or_none() -> Iterator[None]:
    """Raise an error in every process if the block raises one in any of them.

    Raises:
        torch.OutOfMemoryError: another process has run out of memory.
        ProcessError: another process has failed.
    """
    if count() == 1:
        yield
        return
    out_of_memory, failed = 1, 2
    try:
        yield
    except Exception as error:
        mine = out_of_memory if is_out_of_memory(error) else failed
        if largest(mine) == mine:
            raise
        raise OtherProcessError("another process of this training has failed") from error
    worst = largest(0)
    if worst == out_of_memory:
        raise torch.OutOfMemoryError("out of memory in another process of this training")
    if worst == failed:
        raise OtherProcessError(
            "another process of this training has failed; its own error says why"
        )


def digest(tensors: Iterable[Tensor]) -> str:
    """Return a checksum of the bits of some tensors."""
    found = xxhash.xxh3_128()
    for each in tensors:
        found.update(each.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _cpu_group() -> Any:
    """Return a group that sends tensors of the CPU."""
    global _groups  # noqa: PLW0603 (torch has one default group, too)
    whole = dist.group.WORLD
    if _groups is None or _groups[0] is not whole:
        ready = "cpu:gloo" in dist.get_backend_config(whole)
        _groups = whole, whole if ready else dist.new_group(backend="gloo")
    return _groups[1]


@contextmanager
def _connection() -> Iterator[None]:
    """Replace the errors of a lost connection by one that says what to do."""
    try:
        yield
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise OtherProcessError(
            f"another process of this training has ended ({first_line(error)}); the training can continue "
            "from its last saved state"
        ) from error


# -- the start of several processes ------------------------------------------------------------

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
        log.warning("%d GPUs instead of %d: training is slower", count, gpus)
    with tempfile.TemporaryDirectory(prefix="dpsweep-group-") as folder:
        statuses = _run(count, Path(folder), function, arguments)
        # In the order of their ends; the cause comes before processes that have noticed the end of another.
        answers = {rank: _answer(Path(folder), rank, count, statuses[rank]) for rank in statuses}
    errors = [each for each in answers.values() if isinstance(each, Exception)]
    for error in sorted(errors, key=lambda each: isinstance(each, OtherProcessError)):
        raise error
    if stops := set(statuses.values()) & {EXIT_AGAIN, EXIT_TERMINATED}:
        raise Interrupted(max(stops))
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
        if stop := interruption(saved=False):
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
                if statuses[rank] not in (0, EXIT_AGAIN, EXIT_TERMINATED):
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
    if status in (EXIT_AGAIN, EXIT_TERMINATED):
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
    refuse_network()
    with watched():
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
        except Interrupted as stop:
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
