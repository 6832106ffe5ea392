"""Noise for random targets: found or refused with a reason, in seconds, and checked by other accountants.

    python -m benchmarks.evidence.targets 100       # as many targets; goes on where it was stopped
    python -m benchmarks.evidence.targets 100 --seed 1

Targets are spread over epsilon 0.01 to 50, delta 1e-12 to 0.1, N to 1e8, T to 1e6, and every sampling rate,
evenly in their logarithms. Each gets a process of its own, whose processor time and memory are measured; more
than 10 s or 1 GB are too much. Of every noise multiplier, two other accountants say what they find:

- Renyi accounting (dp-accounting), an upper bound: a certified epsilon above it would be loose;
- privacy loss distributions of dp-accounting on half the mesh: epsilon itself, nearly.

Results go to benchmarks/results/targets.json.
"""

import math
import multiprocessing
import random
import resource
import sys
import time
import warnings
from collections import Counter
from typing import Any

import dp_accounting
from dp_accounting.rdp import RdpAccountant

from benchmarks.common import RESULTS, command_line, environment
from dpsweep.base.files import read_json, write_json
from dpsweep.privacy.accountants import pld_epsilon, pld_interval
from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.record import CalibrationError
from dpsweep.privacy.tilted import mesh_width

RESULT = RESULTS / "targets.json"
SECONDS, MEGABYTES = 10, 1000
_LIMIT = 60  # seconds: then a target counts as not found
# A certificate may be this much above what privacy loss distributions find, and below.
TOLERANCE = 2e-3
KEYS = ("epsilon", "delta", "train_size", "batch_size", "steps")
Target = tuple[float, float, int, int, int]


def targets(seed: int, count: int) -> list[Target]:
    """Random targets; the first ones are the same for every count."""
    draw = random.Random(seed)

    def between(low: float, high: float) -> float:
        return math.exp(draw.uniform(math.log(low), math.log(high)))

    found = []
    for _ in range(count):
        epsilon, delta = between(0.01, 50), between(1e-12, 0.1)
        train_size = round(between(100, 1e8))
        sizes = train_size, round(between(1, train_size)), round(between(1, 1e6))
        found.append((float(f"{epsilon:.3g}"), float(f"{delta:.2g}"), *sizes))
    return found


def found_for(target: Target) -> dict[str, Any]:
    """Calibrate in a process of its own, with its limit, and check what it finds."""
    context = multiprocessing.get_context("fork")  # libraries are there already
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_calibrate, args=(target, sender))
    process.start()
    sender.close()
    try:
        result: dict[str, Any] = receiver.recv()
    except EOFError:  # killed by its limit
        result = {"outcome": "not found", "reason": f"over {_LIMIT} s of processor time"}
    process.join()
    return dict(zip(KEYS, target, strict=True)) | result


def _calibrate(target: Target, sender: Any) -> None:
    start = time.process_time()
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(start) + _LIMIT, most))
    result: dict[str, Any] = {"outcome": "found"}
    try:
        noise = calibrate(*target)
    except CalibrationError as error:
        result = {"outcome": "refused", "reason": str(error)}
    except Exception as error:  # of any kind: none may be
        result = {"outcome": "not found", "reason": f"{type(error).__name__}: {error}"}
    result["cpu_seconds"] = round(time.process_time() - start, 2)
    result["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    if result["outcome"] == "found":
        names = ("noise_multiplier", "certified_epsilon", "accountant")
        result |= {name: getattr(noise, name) for name in names}
        result |= other_accountants(target, noise.noise_multiplier, noise.accountant)
    sender.send(result)


def other_accountants(target: Target, sigma: float, accountant: str) -> dict[str, float]:
    """Return what other accountants find for a noise multiplier."""
    epsilon, delta, train_size, batch_size, steps = target
    rate = batch_size / train_size
    step = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
    renyi = RdpAccountant().compose(dp_accounting.SelfComposedDpEvent(step, steps))
    interval = pld_interval(epsilon, steps)
    if accountant == "tilted pld":
        interval = mesh_width(sigma, rate, steps, delta, 1e-3 * epsilon, epsilon)
    loss = pld_epsilon(sigma, rate, steps, delta, interval / 2)
    return {"rdp_epsilon": float(renyi.get_epsilon(delta)), "pld_epsilon": loss}


def faults(row: dict[str, Any]) -> list[str]:
    """What is wrong with a row."""
    wrong = [row["reason"]] if row["outcome"] == "not found" else []
    for name, most in (("cpu_seconds", SECONDS), ("megabytes", MEGABYTES)):
        if row.get(name, 0) > most:
            wrong.append(f"took {row[name]} {name}")
    if row["outcome"] == "found":
        certified = row["certified_epsilon"]
        if not 0.999 * row["epsilon"] <= certified <= row["epsilon"]:
            wrong.append(f"certifies {certified}")
        if certified > row["rdp_epsilon"] * (1 + 1e-6):
            wrong.append(f"is looser than Renyi accounting, {row['rdp_epsilon']}")
        if abs(row["pld_epsilon"] / certified - 1) > TOLERANCE:
            wrong.append(f"is not the {row['pld_epsilon']} of privacy loss distributions")
    return wrong


def main() -> None:
    """Try the targets that were not tried before, and print what is wrong."""
    parser = command_line(__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    words = parser.parse_args()
    rows = read_json(RESULT)["rows"] if RESULT.exists() else []
    known = {tuple(row[key] for key in KEYS) for row in rows}
    described = environment("dp-accounting", "numpy", "scipy")
    warnings.simplefilter("ignore")
    calibrate(1.0, 1e-5, 1000, 100, 10)  # imports are not what is measured
    for target in targets(words.seed, words.count):
        if target not in known:
            rows.append(found_for(target))
            write_json(RESULT, {"environment": described, "rows": rows})
            print(rows[-1], *faults(rows[-1]), flush=True)
    wrong = [(row, found) for row in rows if (found := faults(row))]
    largest = (max(row.get(name, 0) for row in rows) for name in ("cpu_seconds", "megabytes"))
    print(dict(Counter(row["outcome"] for row in rows)), "at most {} s and {} MB".format(*largest))
    for row, found in wrong:
        print(row, found)
    sys.exit(f"{len(wrong)} targets are wrong" if wrong else 0)


if __name__ == "__main__":
    main()
