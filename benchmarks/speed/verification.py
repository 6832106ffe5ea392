"""Cost of verifying a job's inputs: prepared arrays, and its calibration.

    python -m benchmarks.speed.verification                     # arrays of 0.1, 10 and 150 MB
    python -m benchmarks.speed.verification --megabytes 1000    # of other sizes

Arrays are in memory (the page cache), as for every job but the first; from a disk, reading takes
longer than the checksum. Processor time, the least of five.
"""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.common import command_line
from dpsweep.base.files import checksum
from dpsweep.data import Split, write_prepared
from dpsweep.data.prepared import PreparedDataset
from dpsweep.privacy.calibration import calibrate
from dpsweep.privacy.stored import verify


def seconds(call: Callable[[], object]) -> float:
    """The least processor time of five calls."""
    times = []
    for _ in range(5):
        started = time.process_time()
        call()
        times.append(time.process_time() - started)
    return min(times)


def arrays(megabytes: float, folder: Path) -> dict[str, float]:
    """Open a dataset of some size, and compare with SHA-256 of its largest file."""
    rows = max(2, round(megabytes * 1e6 / (32 * 32 * 3)))
    inputs = np.random.default_rng(0).integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8)
    split, test = Split(inputs, np.arange(rows) % 2), Split(inputs[:2], np.arange(2))
    write_prepared(
        folder,
        **{"name": "noise", "title": "Noise", "source": "", "revision": None},
        classes=["even", "odd"],
        train=split,
        test=test,
    )
    opened = seconds(lambda: PreparedDataset.open(folder))
    hashed = seconds(lambda: checksum(folder / "train_inputs.npy"))
    return {"megabytes": inputs.nbytes / 1e6, "open": opened, "sha256": hashed}


def main() -> None:
    """Measure and print as JSON."""
    parser = command_line(__doc__)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[0.1, 10, 150])
    sizes = parser.parse_args().megabytes
    with tempfile.TemporaryDirectory() as folder:
        found = [arrays(size, Path(folder) / str(size)) for size in sizes]
    noise = calibrate(2.0, 1e-5, 50_000, 4096, 98)
    print(json.dumps({"arrays": found, "calibration": seconds(lambda: verify(noise))}, indent=2))


if __name__ == "__main__":
    main()
