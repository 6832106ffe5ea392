"""The GPU kit: everything that has to be checked and measured on a GPU, in pieces of minutes.

    make gpu INPUTS=folder                 # or: python -m benchmarks.gpu folder
    python -m benchmarks.gpu --rehearse    # all pieces at tiny sizes on the CPU, minutes

Pieces run one after the other, each in a process of its own and in less than nine minutes. Each leaves
a file in benchmarks/results/gpu; a piece that has one is skipped, so the same command goes on after
anything, kills included. Trials go on from their checkpoints (in the folder). A piece that fails leaves
the reason in <piece>.failed, and comes after all others in the next call.

Needed are torch, timm, peft and transformers, and the folder that `python -m benchmarks.gpu.inputs`
fills where there is a network: prepared data and weights, calibrations, and a few small packages. Pieces
whose inputs are not there yet are left for the next call.
"""

import argparse
import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.gpu.kit import Kit

REPOSITORY = Path(__file__).parents[2]
RESULTS = REPOSITORY / "benchmarks" / "results" / "gpu"
PIECE_SECONDS = 530
SAVE_SECONDS = 20
"""Between the signal that announces the end of a piece and its end."""
LEAST_SECONDS = 60
"""With less left, no piece begins."""


@dataclass(frozen=True)
class Piece:
    """Something to measure."""

    name: str
    run: Callable[["Kit"], dict[str, Any]]
    needs: tuple[str, ...] = ()
    """files of the inputs"""


def pieces(kit: "Kit") -> list[Piece]:
    """All pieces, in the order of their value for the time that they take."""
    from benchmarks import step_cost  # noqa: PLC0415
    from benchmarks.gpu import right, speed, trials  # noqa: PLC0415

    rows = step_cost.rows(kit.rehearse)
    first, *rest = (
        Piece(name, partial(trials.train, cells=cells), needs)
        for name, cells, needs in trials.groups(kit)
    )
    return [
        *(Piece(f"right_{row.name}", partial(right.engines, row=row)) for row in rows),
        Piece("right_noise", right.noise),
        Piece("right_resume", right.resume),
        first,
        *(Piece(f"step_{row.name}", partial(speed.steps, row=row)) for row in rows),
        Piece("cell", speed.cell),
        # Compilation takes minutes.
        *(
            Piece(f"{name}_{row.name}_compiled", partial(run, row=row, compiled=True))
            for row in rows
            for name, run in (("right", right.engines), ("step", speed.steps))
            if name == "step" or row.compiles
        ),
        Piece("noise_cost", speed.noise_cost),
        *rest,
        Piece("cell_compiled", partial(speed.cell, compiled=True)),
    ]


def run_piece(kit: "Kit", name: str, results: Path) -> None:
    """Run one piece in this process and write what it found, or why it failed."""
    from dpsweep.files import write_json, write_text  # noqa: PLC0415

    os.setpgrp()  # so that what it starts ends with it
    failed, started = results / f"{name}.failed", time.monotonic()
    try:
        piece = next(piece for piece in pieces(kit) if piece.name == name)
        content = {"piece": name, "environment": kit.environment()} | piece.run(kit)
        content["piece_seconds"] = round(time.monotonic() - started, 1)
        write_json(results / f"{name}.json", content)
    except Exception:
        write_text(failed, traceback.format_exc())
        raise
    failed.unlink(missing_ok=True)


def run_all(kit: "Kit", results: Path, only: list[str], seconds: float) -> int:
    """Run what is missing, what has failed before at last; return how many pieces are missing then."""
    deadline = time.monotonic() + seconds
    context, missing = _context(kit), []
    for piece in sorted(pieces(kit), key=lambda each: (results / f"{each.name}.failed").exists()):
        if (results / f"{piece.name}.json").exists() or (only and piece.name not in only):
            continue
        lacking = [each for each in piece.needs if not (kit.inputs / each).exists()]
        left = deadline - time.monotonic()
        if lacking:
            missing.append(f"{piece.name}: waits for {', '.join(lacking)}")
        elif left < LEAST_SECONDS:
            missing.append(f"{piece.name}: no time left, call again")
        elif status := _run_apart(context, kit, piece.name, results, left):
            missing.append(f"{piece.name}: {status}")
        else:
            print(f"{piece.name}: done", flush=True)
    print("\n".join(missing) or "Everything is done.", flush=True)
    return len(missing)


def _context(kit: "Kit") -> BaseContext:
    """What starts processes: forks have all libraries at once, but no GPU where an import has used it."""
    import timm  # noqa: F401, PLC0415
    import torch  # noqa: PLC0415

    if kit.rehearse:
        torch.set_num_threads(1)
        torch.compiler.set_stance("force_eager")  # the tests of the engines compile
    fork = multiprocessing.get_context("fork")
    canary = fork.Process(target=torch.zeros, args=(1,), kwargs={"device": kit.device})
    canary.start()
    canary.join()
    return multiprocessing.get_context("spawn") if canary.exitcode else fork


def _run_apart(context: BaseContext, kit: "Kit", name: str, results: Path, seconds: float) -> str:
    """Run a piece in a process of its own; return what was wrong."""
    from dpsweep.files import write_text  # noqa: PLC0415

    process = context.Process(target=run_piece, args=(kit, name, results))
    process.start()
    try:
        process.join(min(seconds, PIECE_SECONDS) - SAVE_SECONDS)
        if late := process.exitcode is None:
            process.terminate()  # trials save their state
            process.join(SAVE_SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
    if process.exitcode == 0:
        return ""
    wrong = f"exit status {process.exitcode}, see above"
    if late:
        wrong = "its time was over, call again: trials go on where they were"
    if process.exitcode < 0 and not (late and seconds < PIECE_SECONDS):
        write_text(results / f"{name}.failed", wrong)
    return wrong


def main() -> None:
    """Run the kit, or one piece of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("inputs", type=Path, nargs="?", help="the folder of the inputs")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--results", type=Path, help="by default benchmarks/results/gpu")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="to run for in all")
    parser.add_argument("--only", action="append", default=[], help="a piece; may be repeated")
    parser.add_argument("--list", action="store_true", help="list the pieces")
    arguments = parser.parse_args()
    if arguments.inputs is None and not arguments.rehearse:
        parser.error("name the folder of the inputs, or --rehearse")
    inputs = arguments.inputs or Path(tempfile.gettempdir()) / "dpsweep-gpu-rehearsal"
    sys.path[:0] = [str(REPOSITORY / "src")]
    sys.path.append(str(inputs.resolve() / "packages"))  # what this machine has goes first
    from benchmarks.gpu.inputs import join_parts  # noqa: PLC0415
    from benchmarks.gpu.kit import Kit  # noqa: PLC0415

    kit = Kit(inputs.resolve(), arguments.rehearse)
    # A rehearsal is no measurement.
    results = arguments.results or (kit.inputs / "rehearsal" if kit.rehearse else RESULTS)
    if arguments.list:
        print("\n".join(piece.name for piece in pieces(kit)))
    else:
        join_parts(kit.inputs)
        sys.exit(min(1, run_all(kit, results, arguments.only, arguments.seconds)))


if __name__ == "__main__":
    main()
