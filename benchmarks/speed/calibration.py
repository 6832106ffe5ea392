"""Measure noise calibration: every distinct setting of the paper's study.

    python -m benchmarks.speed.calibration

The result goes to benchmarks/results/calibration.json, `python -m benchmarks.tables` writes the table. Times
are processor times, because other load hardly changes these.
"""

import math
import resource
import time
from collections import Counter

from benchmarks.common import REPOSITORY, RESULTS, command_line, environment
from dpsweep.base.files import write_json
from dpsweep.privacy.calibration import calibrate
from dpsweep.study import load_study

PACKAGES = ("dp-accounting", "numpy", "scipy")
DELTA = 1e-5


def measure_study() -> None:
    """Compute all calibrations of the paper's study, in one process."""
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


if __name__ == "__main__":
    command_line(__doc__).parse_args()
    measure_study()
