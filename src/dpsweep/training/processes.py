"""Several processes that train one model together, each on its own GPU or CPU core.

Every process has the whole model, draws the same batch from the same stream, and computes the gradients of
every k-th micro-batch. `add_up` sums the clipped gradients of all processes. Then every process adds the
same noise of the same stream and takes the same step: no process has a model with less noise, and nothing
is sent but sums.

Without a process group of torch.distributed, all functions here are those of one process.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor

from dpsweep.base.errors import DpsweepError
from dpsweep.gradients.engines import first_line, is_out_of_memory

Value = TypeVar("Value")

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
