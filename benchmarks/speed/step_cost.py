"""Measure an optimizer step: ours, the same without privacy, and Opacus.

    python -m benchmarks.speed.step_cost          # about 40 minutes on one core
    python -m benchmarks.speed.step_cost --only "ViT-Tiny, FiLM"    # this row again

Every contender of a row takes the same batch through the same network with the same trainable
parameters and the same optimizer. They take turns in one process, so that other load hits all of them,
and a ratio is the median over the rounds of (contender / without privacy in the same round). Peak memory
is what steps need beyond the model: on a GPU the second step by its allocator, on the CPU the growth of a
fresh process in two steps (the median of three, which differ by some 20 MB).

Results go to benchmarks/results/step_cost_cpu.json; `python -m benchmarks.tables` writes the table of
docs/performance.md. On a GPU these are pieces of `python -m benchmarks.gpu`.
"""

import gc
import multiprocessing
import statistics
import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.common import RESULTS, command_line, environment, peak_bytes
from benchmarks.speed.steps import CONTENDERS, REFERENCE, ROWS, Row, Setting, Step
from dpsweep.base.files import read_json, write_json
from dpsweep.gradients.precision import full_precision

RESULT = RESULTS / "step_cost_cpu.json"
CPU = Setting(torch.device("cpu"))
MEMORY_RUNS = 3


def measure_times(row: Row, setting: Setting, rounds: int) -> dict[str, dict[str, Any]]:
    """Let the contenders take turns; return seconds a step and ratios to the reference.

    What cannot run, or has no memory left, is a failure with its reason. On a GPU the megabytes of a step
    are there as well.
    """
    found: dict[str, dict[str, Any]] = {}
    steps: dict[str, Step] = {}
    for name, make in CONTENDERS.items():
        if name.startswith("Opacus") and (setting.compiled or find_spec("opacus") is None):
            continue
        try:
            steps[name] = make(row, setting)
            found[name] = warm_up(steps[name], setting.device)
        except Exception as error:
            steps.pop(name, None)
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            found[name] = {"failure": reason}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            seconds[name].append(timed(step, setting.device))
    for name, times in seconds.items():
        found[name]["seconds"] = round(statistics.median(times), 5)
        if REFERENCE in seconds:
            ratios = [one / other for one, other in zip(times, seconds[REFERENCE], strict=True)]
            found[name]["ratio"] = round(statistics.median(ratios), 3)
    return found


def warm_up(step: Step, device: torch.device) -> dict[str, Any]:
    """Take two steps; on a GPU return the megabytes of the second one beyond what was there before."""
    gc.collect()
    if device.type == "cpu":
        step()
        step()
        return {}
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    step()  # compiles, looks for an engine, makes the state of the optimizer
    gc.collect()
    torch.cuda.reset_peak_memory_stats()
    step()
    return {"megabytes": round((torch.cuda.max_memory_allocated() - before) / 1e6, 1)}


def timed(step: Step, device: torch.device) -> float:
    """Return the seconds of a call: of one on the CPU, a fifth of those of five on a GPU."""
    if device.type == "cpu":
        # Processor time of one thread: other load does not count.
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


def memory(job: tuple[Row, str]) -> float:
    """Megabytes that two steps of a contender need on the CPU beyond its model, in a fresh process."""
    row, name = job
    _quiet()
    step = CONTENDERS[name](row, CPU)
    gc.collect()
    resident = psutil.Process().memory_info().rss
    # The peak so far is that of imports and of building the model; only growth beyond it shows.
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
    """Measure the times of a row in every precision of a device, and memory where it is a GPU.

    Compiled steps of a GPU are measured in bfloat16 alone, as trials take them: each costs minutes. In
    float32 nobody has TF32, which private steps go without.
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
    arguments = parser.parse_args()
    _quiet()
    described = environment("torch", "timm", "opacus", "peft", device="CPU, one thread")
    result: dict[str, Any] = {"environment": described, "rows": []}
    if arguments.only and RESULT.exists():
        result = read_json(RESULT)
        if result["environment"] | {"load_before": None} != described | {"load_before": None}:
            parser.error(f"{RESULT} was measured elsewhere, here is {described}: measure all rows")
    spawn = multiprocessing.get_context("spawn")
    for row in (each for each in ROWS if arguments.only in (None, each.title)):
        (measured,) = measure_row(row, CPU.device, arguments.rounds)
        for name, contender in measured["contenders"].items():
            if "failure" not in contender:
                with spawn.Pool(1, maxtasksperchild=1) as pool:
                    found = pool.map(memory, [(row, name)] * MEMORY_RUNS, chunksize=1)
                contender["megabytes"] = round(statistics.median(found), 1)
        others = [each for each in result["rows"] if each["title"] != row.title]
        rows = sorted([*others, measured], key=lambda each: titles.index(each["title"]))
        result |= {"rows": rows}
        write_json(RESULT, result)


if __name__ == "__main__":
    main()
