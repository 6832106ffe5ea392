"""`snakemake release`: the workflow makes one model, and never again."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.workflow.chain import STUDY, Chain

from dpsweep.release import TRAINED
from dpsweep.release.verify import verify

RELEASE: dict[str, Any] = {
    "sweep": "digits_vit_film",
    "selection": "private",
    "epsilon": 8.0,
    "epochs": [1],
    "batch_size": ["full"],
    "clipping_bound": [1.0],
    "learning_rate": [0.01, 0.03],
}


@pytest.mark.slow
def test_a_release_is_made_once(tmp_path: Path) -> None:
    chain = Chain(tmp_path, copy.deepcopy(STUDY) | {"release": RELEASE})
    said = chain.run("release")
    assert "differentially private" in said
    folder = chain.results / "release"
    made = {file: file.read_bytes() for file in folder.iterdir()}
    assert json.loads((folder / "certificate.json").read_text())["epsilon"] == 8
    assert not (chain.results / "trials").exists()
    assert not (chain.results / "cells").exists()

    # An edited section neither removes the model nor fits its certificate.
    chain.study["release"] = RELEASE | {"epsilon": 1.0}
    chain.write()
    said = chain.run("release", expect=1)
    assert "epsilon: found 8.0, expected 1.0" in said
    assert {file: file.read_bytes() for file in folder.iterdir()} == made
    chain.study["release"] = RELEASE
    chain.write()

    # An existing model does not need its data; a forced call does not train another model.
    shutil.rmtree(chain.results / "data")
    assert "differentially private" in chain.run("release", options=("--force",))
    assert {file: file.read_bytes() for file in folder.iterdir()} == made
    assert not (chain.results / "data").exists()

    (folder / "README.md").write_text("Trust me.")
    assert "README.md: is not the card of this certificate" in chain.run("release", expect=1)

    # After the model is moved away, another one is made.
    folder.rename(tmp_path / "elsewhere")
    assert "differentially private" in chain.run("release")
    assert (folder / TRAINED).read_bytes() != made[folder / TRAINED]
    assert len(verify(folder).releases.earlier) == 1
