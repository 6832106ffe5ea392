"""Functions that run in several processes of one gloo group, for tests."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing


def run_in_group(count: int, folder: Path, function: Callable[..., Any], *given: Any) -> list[Any]:
    """Run a function in ``count`` new processes that form a group; return what each returns or raises."""
    # Forked, so that they need no imports, and have a bug that is planted in this process.
    given_to_all = (count, folder, function, given)
    multiprocessing.start_processes(_member, given_to_all, nprocs=count, start_method="fork")
    written = [(folder / f"{rank}.pkl").read_bytes() for rank in range(count)]
    return [pickle.loads(each) for each in written]  # noqa: S301 (written above)


def _member(rank: int, count: int, folder: Path, function: Callable[..., Any], given: Any) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=count)
    (folder / f"{rank}.pkl").write_bytes(pickle.dumps(function(*given)))
    dist.destroy_process_group()
