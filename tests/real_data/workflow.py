"""Train the cells of a study by its workflow."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd

from dpsweep.study import load_study
from dpsweep.study.paths import Paths

SNAKEFILE = Path(__file__).parents[2] / "Snakefile"


def train(file: Path) -> pd.DataFrame:
    """Train all cells of a study, with all that they need; return the rows of their trials.

    Snakemake runs in the folder of ``file``, so that it does not disturb another one in the repository.
    """
    study = load_study(file)
    paths = Paths(Path(study.results))
    outputs = [paths.cell(cell) / "trials.parquet" for cell in study.all_cells()]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "snakemake", "--snakefile", str(SNAKEFILE)),
            *("--directory", str(file.parent), "--workflow-profile", "none", "--cores", "2"),
            *("--scheduler", "greedy", "--show-failed-logs", "--config", f"study={file}"),
            *("--", *map(str, outputs)),
        ],
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return pd.concat(map(pd.read_parquet, outputs))
