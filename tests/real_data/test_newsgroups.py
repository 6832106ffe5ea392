"""Real texts through the whole path of texts (`make real-data`)."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.workflow.chain import ROOT, Chain

from dpsweep.study import load_study
from dpsweep.study.paths import Paths

STUDY = ROOT / "studies" / "real-newsgroups.yaml"
DATA = ROOT.parent / "shared" / "data" / "20_newsgroups"
PUBLIC, PRIVATE = (f"20newsgroups_distilbert-small_{method}" for method in ("all", "lora"))

pytestmark = [
    pytest.mark.real_data,
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason=f"needs 20 Newsgroups in {DATA}"),
]


def test_newsgroups_are_read_trained_on_and_measured(tmp_path: Path) -> None:
    # Snakemake runs elsewhere, so that it does not disturb another one in the repository.
    source = {"path": str(DATA)}
    chain = Chain(
        tmp_path,
        {"extends": str(STUDY), "datasets": {"20newsgroups": {"source": source}}},
    )
    study = load_study(chain.folder / chain.file)
    paths = Paths(Path(study.results))
    cells = {cell.problem: paths.cell_trials(study, cell) for cell in study.all_cells()}
    norms = paths.gradient_norms(study, PRIVATE, 8.0, 3, 1.0)
    chain.run(*map(str, [*cells.values(), norms]))

    tokens = np.load(chain.results / "data" / "20newsgroups" / "train_inputs.npy", mmap_mode="r")
    assert tokens.shape == (11314, 96)
    private, public = (
        pd.read_parquet(chain.folder / cells[name]).iloc[0] for name in (PRIVATE, PUBLIC)
    )
    columns = ["accuracy", "loss", "steps", "noise_multiplier", "wall_seconds"]
    print(pd.DataFrame([public[columns], private[columns]], index=["all", "LoRA"]).to_string())  # noqa: T201
    # Training starts from a zero layer, that is from a loss of log(20).
    start = math.log(20)
    assert public["loss"] < start - 0.3
    assert public["accuracy"] > 3 / 20
    # Random features tell little, and the noise hides some of it.
    assert private["loss"] < start - 0.01
    # Four standard errors above guessing.
    assert private["accuracy"] > 0.06
    assert 7.9 < private["certified_epsilon"] <= 8
    measured = pd.read_parquet(chain.folder / norms)
    assert len(measured) == 3 * 11314
    assert np.isfinite(measured["norm"]).all()
