"""Measure the optimizer steps of dpsweep, without privacy, and of Opacus.

    python -m benchmarks.speed.step_cost          # about 40 minutes on one core
    python -m benchmarks.speed.step_cost --only "ViT-Tiny, FiLM"    # this row again
    python -m benchmarks.speed.step_cost --units    # units of 4 rows beside as many rows of their own

All contenders of a row use the same batch, network, trainable parameters and optimizer. They take turns in
one process, so other load affects all of them. A ratio is the median over the rounds of (contender / without
privacy in the same round). Peak memory is the memory of steps beyond the model: on a GPU that of the second
step by its allocator, on the CPU the growth of a new process in two steps (the median of three, which differ
by about 20 MB).

Results go to benchmarks/results/step_cost_cpu.json; `python -m benchmarks.tables` writes the table of
docs/performance.md. On a GPU these are pieces of `python -m benchmarks.gpu`.
"""

import gc
import multiprocessing
import statistics
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.common import RESULTS, begin_rows, command_line, environment, peak_bytes, put_row
from benchmarks.speed import steps
from benchmarks.speed.steps import CONTENDERS, REFERENCE, ROWS, Row, Setting, Step
from dpsweep.gradients.engines import full_precision

RESULT = RESULTS / "step_cost_cpu.json"
CPU = Setting(torch.device("cpu"))
MEMORY_RUNS = 3


def measure_times(row: Row, setting: Setting, rounds: int) -> dict[str, dict[str, Any]]:
    """Let the contenders take turns; return the seconds of a step and the ratios to the reference.

    A contender that fails or runs out of memory has its error instead. On a GPU the result includes the
    megabytes of a step.
    """
    found: dict[str, dict[str, Any]] = {}
    contenders: dict[str, Step] = {}
    for name, make in CONTENDERS.items():
        if name.startswith("Opacus") and (setting.compiled or find_spec("opacus") is None):
            continue
        try:
            contenders[name] = make(row, setting)
            found[name] = warm_up(contenders[name], setting.device)
        except Exception as error:
            contenders.pop(name, None)
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            found[name] = {"failure": reason}
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, step in contenders.items():
            seconds[name].append(timed(step, setting.device))
    for name, times in seconds.items():
        found[name]["seconds"] = round(statistics.median(times), 5)
        if REFERENCE in seconds:
            ratios = [one / other for one, other in zip(times, seconds[REFERENCE], strict=True)]
            found[name]["ratio"] = round(statistics.median(ratios), 3)
    return found


def ratio_of_units(row: Row, setting: Setting, rounds: int, rows_per_unit: int = 4) -> float:
    """Return what a step on units costs beside one on as many rows of their own: the median over the rounds.

    Each round steps on rows, units and rows; rows count with the mean of both.
    """
    rows, units = steps.dpsweep(row, setting), steps.dpsweep(row, setting, rows_per_unit)
    for step in (rows, units):
        warm_up(step, setting.device)
    ratios = []
    for _ in range(rounds):
        before, of_units, after = (timed(step, setting.device) for step in (rows, units, rows))
        ratios.append(2 * of_units / (before + after))
    return round(statistics.median(ratios), 3)


def warm_up(step: Step, device: torch.device) -> dict[str, Any]:
    """Take two steps; on a GPU return the megabytes that the second step allocates."""
    gc.collect()
    if device.type == "cpu":
        step()
        step()
        return {}
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    step()  # compiles, chooses an engine, creates the state of the optimizer
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    step()
    return {"megabytes": round((torch.cuda.max_memory_allocated() - before) / 1e6, 1)}


def timed(step: Step, device: torch.device) -> float:
    """Return the seconds of a step: of one on the CPU, the mean of five on a GPU."""
    if device.type == "cpu":
        # Processor time of one thread excludes other load.
        started = time.process_time()
        step()
        return time.process_time() - started
    repeats = 5
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(repeats):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / repeats


def measure_memory(job: tuple[Row, Callable[[Row, Setting], Step]]) -> float:
    """Return the megabytes that two steps of a contender need on the CPU beyond its model.

    Call it in a new process.
    """
    row, make = job
    _quiet()
    step = make(row, CPU)
    gc.collect()
    resident = psutil.Process().memory_info().rss
    # Reset the peak, which imports and the construction of the model have raised.
    Path("/proc/self/clear_refs").write_text("5")
    step()
    step()
    return float(peak_bytes() - resident) / 1e6


def _quiet() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def measure_row(
    row: Row, device: torch.device, rounds: int, compiled: bool = False
) -> list[dict[str, Any]]:
    """Measure the times of a row in every precision of a device, and the memory on a GPU.

    Compiled steps are measured only in bfloat16 on a GPU, as trials use them, because each takes minutes. In
    float32 no contender uses TF32, because private steps do not.
    """
    precisions = [None, torch.bfloat16] if device.type == "cuda" else [None]
    found = []
    for autocast in precisions[-1:] if compiled else precisions:
        setting = Setting(device, autocast, compiled)
        with full_precision():
            contenders = measure_times(row, setting, rounds)
        about = {"title": row.title, "setting": setting.name, "batch": row.batch_on(device)}
        found.append(about | {"tokens": row.tokens, "contenders": contenders})
        print(found[-1], flush=True)
    return found


def main() -> None:
    """Measure and write the result after every row."""
    parser = command_line(__doc__)
    titles = [row.title for row in ROWS]
    parser.add_argument("--only", choices=titles, help="measure one row again")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--units", action="store_true", help="only units of 4 rows beside rows; writes nothing"
    )
    arguments = parser.parse_args()
    _quiet()
    measured_rows = [each for each in ROWS if arguments.only in (None, each.title)]
    if arguments.units:
        for row in measured_rows:
            print(f"{row.title}: {ratio_of_units(row, CPU, arguments.rounds)}", flush=True)
        return
    described = environment("torch", "timm", "opacus", "peft", device="CPU, one thread")
    result = begin_rows(RESULT, described, again=bool(arguments.only))
    spawn = multiprocessing.get_context("spawn")
    for row in measured_rows:
        (measured,) = measure_row(row, CPU.device, arguments.rounds)
        for name, contender in measured["contenders"].items():
            if "failure" not in contender:
                jobs = [(row, CONTENDERS[name])] * MEMORY_RUNS
                with spawn.Pool(1, maxtasksperchild=1) as pool:
                    found = pool.map(measure_memory, jobs, chunksize=1)
                contender["megabytes"] = round(statistics.median(found), 1)
        put_row(RESULT, result, measured, titles)


if __name__ == "__main__":
    main()
