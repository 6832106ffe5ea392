"""Measure noise calibration: every setting of a study, and against other tools.

    python -m benchmarks.speed.calibration study       # all distinct calibrations of config.yaml
    python -m benchmarks.speed.calibration comparison  # 20 settings, four tools

Results go to benchmarks/results/calibration*.json, `python -m benchmarks.tables` writes the tables. One
process at a time; processor time, so that other load does not count much.
"""

import math
import multiprocessing
import resource
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import dp_accounting
from dp_accounting.pld import PLDAccountant
from opacus.accountants.utils import get_noise_multiplier
from prv_accountant.dpsgd import find_noise_multiplier
from scipy.optimize import brentq

from benchmarks.common import REPOSITORY, RESULTS, command_line, environment
from dpsweep.base.files import write_json
from dpsweep.config.cells import optimizer_steps
from dpsweep.privacy.accountants import pld_epsilon
from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.gaussian import gaussian_noise_multiplier
from dpsweep.study import load_study

PACKAGES = ("dp-accounting", "numpy", "opacus", "prv-accountant", "scipy")
DELTA = 1e-5
TIME_LIMIT = 300  # seconds of processor time for one search
# (data, N, B, epochs, epsilon), from corner to corner of the paper's study.
SETTINGS = [
    ("SUN397", 87002, 256, 8, 0.25),
    ("SUN397", 87002, 256, 32, 1.0),
    ("SUN397", 87002, 256, 2, 8.0),
    ("SUN397", 87002, 4096, 8, 0.25),
    ("SUN397", 87002, 4096, 32, 2.0),
    ("SUN397", 87002, 65536, 2, 0.25),
    ("SUN397", 87002, 65536, 32, 8.0),
    ("CIFAR-100", 50000, 1024, 8, 0.5),
    ("CIFAR-100", 50000, 16384, 8, 4.0),
    ("CIFAR-100 (10%)", 5000, 256, 32, 1.0),
    ("Cassava", 7545, 4096, 32, 0.25),
    ("Cassava", 7545, 7545, 32, 0.25),
    ("SUN397", 87002, 1024, 8, 2.0),
    ("SUN397", 87002, 16384, 16, 1.0),
    ("SUN397", 87002, 32768, 4, 8.0),
    ("CIFAR-100", 50000, 256, 32, 8.0),
    ("CIFAR-100", 50000, 4096, 16, 2.0),
    ("CIFAR-100 (10%)", 5000, 1024, 8, 8.0),
    ("Cassava", 7545, 256, 8, 0.5),
    ("20 Newsgroups", 11314, 1024, 8, 4.0),
]


def dpsweep(epsilon: float, train_size: int, batch_size: int, steps: int) -> float:
    """Search with this project."""
    return calibrate(epsilon, DELTA, train_size, batch_size, steps).noise_multiplier


def prv_accountant(
    epsilon: float, train_size: int, batch_size: int, steps: int, **error: float
) -> float:
    """Search with prv-accountant; as it comes, with an error of 0.1 in epsilon."""
    return find_noise_multiplier(batch_size / train_size, steps, epsilon, DELTA, **error)


def prv_accountant_fine(epsilon: float, *others: int) -> float:
    """Search with prv-accountant, with an error of 1 % of epsilon."""
    return prv_accountant(epsilon, *others, eps_error=0.01 * epsilon)


def opacus(epsilon: float, train_size: int, batch_size: int, steps: int) -> float:
    """Search with Opacus and its PRV accountant, as it comes."""
    rate = batch_size / train_size
    return get_noise_multiplier(
        target_epsilon=epsilon, target_delta=DELTA, sample_rate=rate, steps=steps, accountant="prv"
    )


def pld(epsilon: float, train_size: int, batch_size: int, steps: int) -> float:
    """Search with dp-accounting and its PLD accountant, as it comes."""

    def event(sigma: float) -> dp_accounting.DpEvent:
        step = dp_accounting.PoissonSampledDpEvent(
            batch_size / train_size, dp_accounting.GaussianDpEvent(sigma)
        )
        return dp_accounting.SelfComposedDpEvent(step, steps)

    return dp_accounting.calibrate_dp_mechanism(PLDAccountant, event, epsilon, DELTA)


TOOLS: dict[str, Callable[..., float]] = {
    "dpsweep": dpsweep,
    "prv-accountant": prv_accountant,
    "prv-accountant, 1 %": prv_accountant_fine,
    "Opacus": opacus,
    "dp-accounting": pld,
}


def exact_noise(epsilon: float, train_size: int, batch_size: int, steps: int) -> float:
    """Return the noise multiplier whose epsilon is exact to about 3 parts in 10^6."""
    if batch_size == train_size:
        return gaussian_noise_multiplier(epsilon, DELTA, steps)
    interval = epsilon * min(3e-5, 1e-3 / math.sqrt(steps))
    near, rate = dpsweep(epsilon, train_size, batch_size, steps), batch_size / train_size
    ends = 0.98 * near, 1.01 * near
    return brentq(
        lambda s: pld_epsilon(s, rate, steps, DELTA, interval) - epsilon, *ends, rtol=1e-6
    )


def timed(tool: str, arguments: tuple[float, int, int, int]) -> dict[str, Any]:
    """Run a tool in a process of its own, whose time is measured and limited."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(tool, arguments, sender))
    process.start()
    process.join()
    return receiver.recv() if receiver.poll() else {"failure": f"over {TIME_LIMIT} s"}


def _report(tool: str, arguments: tuple[float, int, int, int], sender: Any) -> None:
    TOOLS[tool](1.0, 1000, 100, 10)  # imports and caches are not what is measured
    start = time.process_time()
    limit = math.ceil(start) + TIME_LIMIT
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    try:
        result: dict[str, Any] = {"noise_multiplier": float(TOOLS[tool](*arguments))}
    except Exception as error:
        result = {"failure": f"{type(error).__name__}: {error}"}
    sender.send(result | {"cpu_seconds": round(time.process_time() - start, 3)})


def measure_comparison() -> None:
    """Compare the tools on the 20 settings."""
    result: dict[str, Any] = {"environment": environment(*PACKAGES), "delta": DELTA, "settings": []}
    for data, train_size, batch_size, epochs, epsilon in SETTINGS:
        steps = optimizer_steps(train_size, batch_size, epochs, "round")
        arguments = (epsilon, train_size, batch_size, steps)
        exact = exact_noise(*arguments)
        tools = {tool: timed(tool, arguments) for tool in TOOLS}
        for measured in tools.values():
            if "noise_multiplier" in measured:
                excess = measured["noise_multiplier"] / exact - 1
                measured["excess_percent"] = round(100 * excess, 4)
        sizes = {"data": data, "train_size": train_size, "batch_size": batch_size, "epochs": epochs}
        setting = sizes | {"steps": steps, "epsilon": epsilon}
        result["settings"].append(setting | {"exact_noise_multiplier": exact, "tools": tools})
        print(result["settings"][-1], flush=True)
    write_json(RESULTS / "calibration_comparison.json", result)


def measure_study() -> None:
    """Calibrate everything that the paper's study needs, in one process."""
    study, settings = load_study(REPOSITORY / "config.yaml"), set()
    for cell in study.all_cells():
        dataset = study.problems[cell.problem].dataset
        if math.isfinite(cell.epsilon):
            steps = study.steps(dataset, cell.epochs, cell.batch_size)
            sizes = study.train_size(dataset), study.batch_size(cell), steps
            settings.add((cell.epsilon, *sizes))
    calibrate(1.0, DELTA, 1000, 100, 10)  # imports
    described = environment(*PACKAGES)
    rows, started, processor = [], time.perf_counter(), time.process_time()
    accountants: Counter[str] = Counter()
    for epsilon, *sizes in sorted(settings):
        start = time.process_time()
        found = calibrate(epsilon, DELTA, *sizes)
        seconds = round(time.process_time() - start, 3)
        accountants[found.accountant] += 1
        epsilons = (found.certified_epsilon, found.pld_epsilon)
        rows.append([*sizes, epsilon, found.noise_multiplier, *epsilons, seconds])
    tightness = [row[5] / row[3] for row in rows]
    result = {
        **{"environment": described, "study": "config.yaml", "delta": DELTA},
        **{"calibrations": len(rows), "accountants": dict(accountants)},
        "wall_seconds": round(time.perf_counter() - started, 1),
        "cpu_seconds": round(time.process_time() - processor, 1),
        "slowest_cpu_seconds": max(row[7] for row in rows),
        "peak_megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "certified_over_target": [min(tightness), max(tightness)],
        "largest_pld_disagreement": max(abs(row[6] / row[5] - 1) for row in rows),
        "columns": [
            *("train_size", "batch_size", "steps", "epsilon"),
            *("noise_multiplier", "certified_epsilon", "pld_epsilon", "cpu_seconds"),
        ],
        "rows": rows,
    }
    write_json(RESULTS / "calibration.json", result)
    print({key: value for key, value in result.items() if key not in ("rows", "columns")})


def main() -> None:
    """Run one of the measurements."""
    parser = command_line(__doc__)
    parser.add_argument("what", choices=["study", "comparison"])
    if parser.parse_args().what == "study":
        measure_study()
    else:
        measure_comparison()


if __name__ == "__main__":
    main()
