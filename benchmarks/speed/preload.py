"""Measure what `dpsweep.cli.preload` saves: short commands of the demo with and without it, in turn.

    python -m benchmarks.speed.preload FOLDER    # where results/demo is, as `make demo` leaves it

It prints the table of docs/performance.md.
"""

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.common import REPOSITORY, command_line
from dpsweep.cli import preload

DEMO = REPOSITORY / "studies" / "demo.yaml"
COMMANDS = {
    "calibration": ["calibrate", "digits", "8.0", "8", "64"],
    "cell whose trials are in the store": [
        "train", "digits_vit-weak_film", "eps8_epochs4_B64_C1",
    ],
    "figure": ["figure", "fig1_accuracy_heatmaps"],
}  # fmt: skip
ROUNDS = 4


def seconds(command: list[str], folder: Path, environment: dict[str, str]) -> float:
    """Wall time of one command of the demo."""
    started = time.monotonic()
    subprocess.run(
        [
            sys.executable,
            "-c",
            "from dpsweep.cli.preload import main; main()",
            *command,
            "--study",
            DEMO,
        ],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
    )
    return time.monotonic() - started


def main() -> None:
    """Print the table of docs/performance.md."""
    parser = command_line(__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder.resolve()
    alone = dict(os.environ)
    preload.start()
    served = dict(os.environ)
    for command in COMMANDS.values():  # after this the server has what they import
        seconds(command, folder, served)
    print("| command | with | without |\n|---|---:|---:|")
    for name, command in COMMANDS.items():
        times = [
            (seconds(command, folder, served), seconds(command, folder, alone))
            for _ in range(ROUNDS)
        ]
        given, own = (statistics.median(each) for each in zip(*times, strict=True))
        print(f"| {name} | {given:.1f} s | {own:.1f} s |", flush=True)


if __name__ == "__main__":
    main()
