"""The GPU kit: all checks and measurements on a GPU, in pieces of minutes.

    make gpu INPUTS=folder                 # or: python -m benchmarks.gpu folder
    python -m benchmarks.gpu --rehearse    # all pieces at tiny sizes on the CPU, minutes

Pieces run one after the other, each in a separate process and in less than nine minutes. Each writes a file
to benchmarks/results/gpu. A piece with a file is skipped, so the same command resumes after any stop, also
after a kill. Trials resume from their checkpoints (in the folder). A piece that fails writes the reason to
<piece>.failed, and runs last in the next call.

The kit needs torch, timm, peft and transformers, and the folder that `python -m benchmarks.gpu.inputs` writes
on a machine with a network: prepared data and weights, calibrations, and a few small packages. Pieces with
missing inputs are left for the next call.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.common import REPOSITORY, command_line
from benchmarks.common import RESULTS as ALL_RESULTS

if TYPE_CHECKING:
    from benchmarks.gpu.kit import Kit

RESULTS = ALL_RESULTS / "gpu"
PIECE_SECONDS = 530
SAVE_SECONDS = 20
"""Time between the termination signal to a piece and its kill."""
CANARY_SECONDS = 60
"""Time limit for the first use of the GPU by a fork."""


def run_all(kit: "Kit", results: Path, only: list[str], deadline: float) -> int:
    """Run missing pieces, with formerly failed ones last; return the number of pieces still missing.

    Args:
        kit: the inputs and the device.
        results: the folder of the results.
        only: names of pieces; all pieces if empty.
        deadline: of `time.monotonic`.
    """
    from benchmarks.gpu import pieces  # noqa: PLC0415

    context, missing = _context(kit), []
    listed = [each for each in pieces.all_pieces(kit) if not only or each.name in only]
    for piece in sorted(listed, key=lambda each: (results / f"{each.name}.failed").exists()):
        if (results / f"{piece.name}.json").exists():
            continue
        lacking = [each for each in piece.needs if not (kit.inputs / each).exists()]
        left = deadline - time.monotonic()
        if lacking:
            missing.append(f"{piece.name}: waits for {', '.join(lacking)}")
        elif left < piece.least_seconds:
            missing.append(f"{piece.name}: no time left, call again")
        elif wrong := _run_apart(context, kit, piece.name, results, left):
            missing.append(f"{piece.name}: {wrong}")
        else:
            print(f"{piece.name}: done", flush=True)
    everything = f"{', '.join(only)}:" if only else "Everything is"
    print("\n".join(missing) or f"{everything} done.", flush=True)
    return len(missing)


def _context(kit: "Kit") -> BaseContext:
    """Return the context of forks, which need not import the libraries again.

    If an import has already used the GPU, a fork cannot use it; then return the context of new processes.
    """
    import timm  # noqa: F401, PLC0415
    import torch._dynamo  # noqa: PLC0415

    fork = multiprocessing.get_context("fork")
    canary = fork.Process(target=torch.zeros, args=(1,), kwargs={"device": kit.device})
    canary.start()
    canary.join(CANARY_SECONDS)
    canary.kill()
    canary.join()
    return multiprocessing.get_context("spawn") if canary.exitcode else fork


def _run_apart(context: BaseContext, kit: "Kit", name: str, results: Path, seconds: float) -> str:
    """Run a piece in a separate process; return its error, or an empty text."""
    from benchmarks.gpu import pieces  # noqa: PLC0415

    process = context.Process(target=pieces.run, args=(kit, name, results))  # type: ignore[attr-defined]
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
        wrong = "its time was over, call again: trials go on where they were, the rest begins again"
    if process.exitcode < 0 and not (late and seconds < PIECE_SECONDS):
        (results / f"{name}.failed").write_text(wrong)
    return wrong


def main() -> None:
    """Run the kit."""
    started = time.monotonic()
    parser = command_line(__doc__)
    parser.add_argument("inputs", type=Path, nargs="?", help="the folder of the inputs")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--results", type=Path, help="by default benchmarks/results/gpu")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="to run in all, at most"
    )
    parser.add_argument("--only", action="append", default=[], help="a piece; may be repeated")
    parser.add_argument("--list", action="store_true", help="list the pieces")
    arguments = parser.parse_args()
    if arguments.inputs is None and not arguments.rehearse:
        parser.error("name the folder of the inputs, or --rehearse")
    inputs = arguments.inputs or Path(tempfile.gettempdir()) / "dpsweep-gpu-rehearsal"
    sys.path[:0] = [str(REPOSITORY / "src")]
    sys.path.append(str(inputs.resolve() / "packages"))  # installed packages have priority
    from benchmarks.gpu.kit import Kit  # noqa: PLC0415
    from benchmarks.gpu.pieces import all_pieces  # noqa: PLC0415

    kit = Kit(inputs.resolve(), arguments.rehearse)
    # A rehearsal is not a measurement.
    results = arguments.results or (kit.inputs / "rehearsal" if kit.rehearse else RESULTS)
    names = [piece.name for piece in all_pieces(kit)]
    if unknown := set(arguments.only) - set(names):
        parser.error(f"--only: found {', '.join(unknown)}; allowed: {', '.join(names)}")
    if arguments.list:
        print("\n".join(names))
    else:
        results.mkdir(parents=True, exist_ok=True)
        deadline = started + arguments.seconds
        sys.exit(min(1, run_all(kit, results, arguments.only, deadline)))


if __name__ == "__main__":
    main()
