"""Train the cells of a study by its workflow."""

from pathlib import Path

import pandas as pd
from tests.workflow.chain import Workflow

from dpsweep.study import load_study
from dpsweep.study.paths import Paths


def train(file: Path, sweep: str | None = None) -> pd.DataFrame:
    """Train all cells of a study, or of one of its sweeps; return the rows of their trials.

    Snakemake runs in the folder of ``file``, so that it does not disturb another one in the repository.
    """
    study = load_study(file)
    paths = Paths(Path(study.results))
    cells = study.all_cells() if sweep is None else study.sweep_cells(sweep)
    outputs = [paths.cell_trials(study, cell) for cell in cells]
    Workflow(file.parent, file.name, study.results).run(*map(str, outputs))
    return pd.concat(map(pd.read_parquet, outputs))
