"""The GPU kit: everything that has to be checked and measured on a GPU, in pieces of minutes.

    make gpu INPUTS=folder                 # or: python -m benchmarks.gpu folder
    python -m benchmarks.gpu --rehearse    # all pieces at tiny sizes on the CPU, minutes

Pieces run one after the other, each in a process of its own and in less than nine minutes. Each leaves
a file in benchmarks/results/gpu; a piece that has one is skipped, so the same command goes on after
anything, kills included. Trials go on from their checkpoints (in the folder).

Needed are torch, timm, peft and transformers, and the folder that `python -m benchmarks.gpu.inputs`
fills where there is a network: prepared data and weights, calibrations, and a few small packages. Pieces
whose inputs are not there yet are left for the next call.
"""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.kit import REPOSITORY, Kit, environment

RESULTS = REPOSITORY / "benchmarks" / "results" / "gpu"
PIECE_SECONDS = 530
SAVE_SECONDS = 20
"""Between the signal that announces the end of a piece and its end."""


@dataclass(frozen=True)
class Piece:
    """Something to measure."""

    name: str
    run: Callable[[Kit], dict[str, Any]]
    needs: tuple[str, ...] = ()
    """files of the inputs"""


def pieces(kit: Kit) -> Iterator[Piece]:
    """All pieces, the most valuable first."""
    from benchmarks import step_cost  # noqa: PLC0415
    from benchmarks.gpu import right, speed, trials  # noqa: PLC0415

    for row in step_cost.rows(kit.rehearse):
        yield Piece(f"right_{row.name}", lambda kit, row=row: right.engines(kit, row))  # type: ignore[misc]
    yield Piece("right_noise", right.noise)
    yield Piece("right_resume", right.resume)
    for name, cells, needs in trials.groups(kit):
        yield Piece(name, lambda kit, cells=cells: trials.train(kit, cells), needs)  # type: ignore[misc]
    for row in step_cost.rows(kit.rehearse):
        yield Piece(f"step_{row.name}", lambda kit, row=row: speed.steps(kit, row))  # type: ignore[misc]
    yield Piece("noise_cost", speed.noise_cost)
    for compiled in (False, True):
        name = "cell_compiled" if compiled else "cell"
        yield Piece(name, lambda kit, compiled=compiled: speed.cell(kit, compiled))  # type: ignore[misc]


def run_piece(kit: Kit, name: str, result: Path) -> None:
    """Run one piece in this process and write what it found."""
    from dpsweep.files import write_json  # noqa: PLC0415
    from dpsweep.training.interruption import watched  # noqa: PLC0415

    started = time.monotonic()
    piece = next(piece for piece in pieces(kit) if piece.name == name)
    content = {"piece": name, "environment": environment(kit.device)}
    with watched():
        content |= piece.run(kit)
    write_json(result, content | {"piece_seconds": round(time.monotonic() - started, 1)})


def run_all(kit: Kit, results: Path, only: list[str], seconds: float) -> int:
    """Run what is missing; return how many pieces are missing then."""
    deadline = time.monotonic() + seconds
    missing = []
    for piece in pieces(kit):
        result = results / f"{piece.name}.json"
        if result.exists() or (only and piece.name not in only):
            continue
        lacking = [each for each in piece.needs if not (kit.inputs / each).exists()]
        left = min(PIECE_SECONDS, deadline - time.monotonic())
        if lacking:
            missing.append(f"{piece.name}: waits for {', '.join(lacking)}")
        elif left < SAVE_SECONDS:
            missing.append(f"{piece.name}: no time left, call again")
        elif status := _run_apart(kit, piece, results, left):
            missing.append(f"{piece.name}: {status}")
        else:
            print(f"{piece.name}: done", flush=True)
    print("\n".join(missing) or "Everything is done.", flush=True)
    return len(missing)


def _run_apart(kit: Kit, piece: Piece, results: Path, seconds: float) -> str:
    """Run a piece in a process of its own; return what was wrong."""
    command = [sys.executable, "-m", "benchmarks.gpu", str(kit.inputs), "--piece", piece.name]
    command += ["--results", str(results), *(["--rehearse"] if kit.rehearse else [])]
    process = subprocess.Popen(command, cwd=REPOSITORY, start_new_session=True)
    try:
        status = process.wait(seconds - SAVE_SECONDS)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)  # trials save their state
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SAVE_SECONDS)
        return "its time was over, call again: trials go on where they were"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return f"exit status {status}, see above" if status else ""


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
    parser.add_argument("--piece", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inputs is None and not arguments.rehearse:
        parser.error("name the folder of the inputs, or --rehearse")
    inputs = arguments.inputs or Path(tempfile.gettempdir()) / "dpsweep-gpu-rehearsal"
    kit = Kit(inputs.resolve(), arguments.rehearse)
    # A rehearsal is no measurement.
    results = arguments.results or (kit.inputs / "rehearsal" if kit.rehearse else RESULTS)
    sys.path[:0] = [str(REPOSITORY / "src")]
    sys.path.append(str(kit.inputs / "packages"))  # what this machine has goes first
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")]
    )
    from benchmarks.gpu.inputs import join_parts  # noqa: PLC0415

    if arguments.list:
        print("\n".join(piece.name for piece in pieces(kit)))
    elif arguments.piece:
        try:
            run_piece(kit, arguments.piece, results / f"{arguments.piece}.json")
        except Exception:
            traceback.print_exc()
            sys.exit(1)
    else:
        join_parts(kit.inputs)
        sys.exit(min(1, run_all(kit, results, arguments.only, arguments.seconds)))


if __name__ == "__main__":
    main()
