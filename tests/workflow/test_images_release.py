"""A folder of private images becomes a released, verified model by three commands, without a download."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits
from tests.waiting import called

from dpsweep.release.verify import verify


@pytest.mark.slow
def test_a_folder_of_images_becomes_a_verified_release(tmp_path: Path) -> None:
    digits = load_digits()
    for number, (pixels, name) in enumerate(zip(digits.images, digits.target, strict=True)):
        file = tmp_path / "images" / str(name) / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels * 15.9).astype(np.uint8)).save(file)
    without_hub = {"OMP_NUM_THREADS": "1", "HF_ENDPOINT": "http://127.0.0.1:9"}
    for command in (
        "new images.yaml --images images --private --epsilon 2 --backbone scattering",
        "run images.yaml release --cores 2",
        "verify results/images/release",
    ):
        called(
            [sys.executable, "-m", "dpsweep.cli", *command.split()],
            tmp_path,
            os.environ | without_hub,
        )
    certificate = verify(tmp_path / "results" / "images" / "release")
    assert certificate.certified_epsilon <= certificate.epsilon == 2
    assert certificate.network.architecture == "scattering"
    assert certificate.test_accuracy > 0.85  # by chance 0.1
