"""`snakemake release`: one model, which the workflow never makes again."""

import copy
import json
from pathlib import Path

from tests.workflow.chain import STUDY, Chain

RELEASE = {
    "sweep": "digits_vit_film",
    "selection": "private",
    "epsilon": 8.0,
    "epochs": [1],
    "batch_size": ["full"],
    "clipping_bound": [1.0],
    "learning_rate": [0.01, 0.03],
}


def test_a_release_is_made_once(tmp_path: Path) -> None:
    chain = Chain(tmp_path, copy.deepcopy(STUDY) | {"release": RELEASE})
    said = chain.run("release")
    assert "differentially private" in said
    folder = chain.results / "release"
    made = {file: file.read_bytes() for file in folder.iterdir()}
    assert json.loads((folder / "certificate.json").read_text())["epsilon"] == 8
    assert not (chain.results / "trials").exists()
    assert not (chain.results / "cells").exists()

    # Another study does not take it away, and is not what it was made for either.
    chain.study["release"] = RELEASE | {"learning_rate": [0.02, 0.05]}
    chain.write()
    assert "train_release" not in chain.run("release")
    assert {file: file.read_bytes() for file in folder.iterdir()} == made

    (folder / "README.md").write_text("Trust me.")
    assert "README.md: is not the card of this certificate" in chain.run("release", expect=1)
