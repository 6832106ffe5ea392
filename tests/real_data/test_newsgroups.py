"""Real texts through the whole path of texts (`make real-data`)."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.workflow.chain import ROOT, Chain

STUDY = ROOT / "studies" / "real-newsgroups.yaml"
DATA = ROOT.parent / "shared" / "data" / "20_newsgroups"
CELLS = {
    "all": "cells/20newsgroups_distilbert-small_all/epsinf_epochs3_B64_Cnone",
    "lora": "cells/20newsgroups_distilbert-small_lora/eps8_epochs3_B256_C1",
}
NORMS = "gradnorms/20newsgroups_distilbert-small_lora/eps8_epochs3_C1.parquet"

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
    outputs = [*(f"results/{cell}/trials.parquet" for cell in CELLS.values()), f"results/{NORMS}"]
    chain.run(*outputs)

    tokens = np.load(chain.results / "data" / "20newsgroups" / "train_inputs.npy", mmap_mode="r")
    assert tokens.shape == (11314, 96)
    private, public = (
        pd.read_parquet(chain.results / CELLS[name] / "trials.parquet").iloc[0]
        for name in ("lora", "all")
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
    norms = pd.read_parquet(chain.results / NORMS)
    assert len(norms) == 3 * 11314
    assert np.isfinite(norms["norm"]).all()
