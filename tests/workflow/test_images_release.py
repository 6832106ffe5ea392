"""Three commands turn a folder of private images into a released, verified model, without a download."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from tests.workflow.chain import Workflow

from dpsweep.base.files import read_json
from dpsweep.cli.main import app
from dpsweep.release import CERTIFICATE

CLASSES = 4


@pytest.mark.nightly
def test_a_folder_of_images_becomes_a_verified_release(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pixels, labels = load_digits(n_class=CLASSES, return_X_y=True)
    for number, (image, name) in enumerate(zip(pixels, labels, strict=True)):
        file = tmp_path / "images" / str(name) / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image.reshape(8, 8) * 15.9).astype(np.uint8)).save(file)
    proposed = "new images.yaml --images images --private --epsilon 2 --backbone scattering"
    with contextlib.chdir(tmp_path):
        app(proposed.split(), standalone_mode=False)
    results = "results/images"
    without_hub = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    Workflow(tmp_path, "images.yaml", results, without_hub).run("release")
    capsys.readouterr()
    app(["verify", str(tmp_path / results / "release")], standalone_mode=False)
    assert "release: (2, " in capsys.readouterr().out
    certificate = read_json(tmp_path / results / "release" / CERTIFICATE)
    assert certificate["network"]["architecture"] == "scattering"
    assert certificate["test_accuracy"] > 0.85  # by chance 0.25
