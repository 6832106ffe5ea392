"""Releases by the workflow: one model and never again; private images or texts become a verified model."""

import contextlib
import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from tests.real_data.test_real_data import write_tickets
from tests.workflow.chain import STUDY, Chain, Workflow

from dpsweep.cli.main import app
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


def write_images(folder: Path) -> None:
    """Write images of four digits, a folder each."""
    pixels, labels = load_digits(n_class=4, return_X_y=True)
    for number, (image, name) in enumerate(zip(pixels, labels, strict=True)):
        file = folder / "images" / str(name) / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image.reshape(8, 8) * 15.9).astype(np.uint8)).save(file)


@pytest.mark.parametrize(
    ("write", "options", "network"),
    [
        pytest.param(
            write_images, "--images images --backbone scattering", "scattering",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            lambda folder: write_tickets(folder / "tickets.csv"),
            "--texts tickets.csv --label-column queue --extends paper", "hashed_ngrams",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["images", "texts"],
)  # fmt: skip
def test_private_data_become_a_verified_release(
    write: Callable[[Path], None], options: str, network: str, tmp_path: Path
) -> None:
    """By three commands, without a download; the model has learnt something."""
    write(tmp_path)
    with contextlib.chdir(tmp_path):
        new = f"new mine.yaml --private --epsilon 2 {options}"
        app(new.split(), standalone_mode=False)
    without_hub = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    workflow = Workflow(tmp_path, "mine.yaml", "results/mine", without_hub)
    workflow.run("release")
    certificate = verify(workflow.results / "release")
    assert (certificate.epsilon, certificate.network.architecture) == (2, network)
    assert certificate.test_set.largest_class < 0.65 * certificate.test_set.size
    assert certificate.test_accuracy >= 0.85
