"""The workflow of an installed package runs in an empty folder, without a clone."""

import re
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as PillowImage
from safetensors.torch import save_file
from tests.waiting import called

from dpsweep.models.architectures import create, seeded, state_without_head
from dpsweep.study.backbones import Architecture


def dpsweep(environment: dict[str, str], folder: Path, *words: str) -> str:
    """Call the installed command in a folder; return its output."""
    done = called([sys.executable, "-m", "dpsweep", *words], folder, environment)
    return done.stdout + done.stderr


VIT = ("timm/vit_tiny_patch16_224.augreg_in21k", "vit_tiny_patch16_224")


def picture(label: int, random: np.random.Generator) -> bytes:
    """Return a JPEG image: noise around the brightness of its class."""
    pixels = random.integers(0, 100, size=(24, 20, 3)) + 70 * label
    stream = BytesIO()
    PillowImage.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(stream, "JPEG")
    return stream.getvalue()


def make_weights(cache: Path, repository: str, name: str) -> None:
    """Write random weights of a network of timm into the cache of the hub, as after a download."""
    with seeded(0):
        network = create(Architecture(library="timm", name=name, arguments={}), 2)
    folder = cache / f"models--{repository.replace('/', '--')}"
    commit = "89abcdef0123456789abcdef0123456789abcdef"
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    save_file(state_without_head(network), folder / "snapshots" / commit / "model.safetensors")


# One trial on a network without weights.
TINY = """\
extends: demo
results: results/tiny
privacy: {check_with_opacus: false}
audit: null
sweeps: !replace
  tiny: {dataset: digits-tenth, backbone: vit-random, method: film, epsilon: [8], epochs: [1],
    batch_size: [full], clipping_bound: [1], learning_rate: [0.01], seeds: 1}
roles: !replace
  datasets: {main: digits-tenth}
  backbones: {weak: vit-random}
  methods: {main: film}
figures: none
"""
FIGURE = "fig1_accuracy_heatmaps"
SUBMIT = """\
#!/bin/sh
# Like the command of a scheduler: start the job elsewhere, and print its number.
nohup sh "$1" > /dev/null 2>&1 &
echo $! | tee -a submitted
"""


@pytest.mark.nightly
def test_a_study_runs_in_an_empty_folder_by_the_commands_of_another_scheduler(
    installed: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    submit = tmp_path / "submit.sh"
    submit.write_text(SUBMIT)
    submit.chmod(0o755)
    cluster = ("--executor", "cluster-generic", "--cluster-generic-submit-cmd", str(submit))
    dpsweep(installed, tmp_path, "run", "--", *cluster, "--jobs", "2")
    assert (tmp_path / "results" / "tiny" / "report.html").exists()
    # Only the cell is submitted; jobs without a GPU run here.
    assert len((tmp_path / "submitted").read_text().splitlines()) == 1
    # A profile of the package is copied, to be edited.
    assert "Nothing to be done" in dpsweep(
        installed, tmp_path, "run", "--", "--profile", "slurm", "-n"
    )
    assert (tmp_path / "profiles" / "slurm" / "config.yaml").exists()


@pytest.mark.slow
def test_the_first_hour_of_a_new_user(installed: dict[str, str], tmp_path: Path) -> None:
    """From a folder of images to a first figure."""
    cache, random = tmp_path / "cache", np.random.default_rng(0)
    environment = installed | {
        **{"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    }
    for label, name in enumerate(("cat", "dog", "eel")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(12):
            file = tmp_path / "photos" / name / f"{number}.jpg"
            file.write_bytes(picture(label, random))
    make_weights(cache, *VIT)
    pets = tmp_path / "pets"
    pets.mkdir()
    photos = ("--images", "../photos", "--backbone", "vit-tiny")
    dpsweep(environment, pets, "new", "pets.yaml", *photos)
    edit(pets / "pets.yaml", r"epsilon: \[1, 8\]", "epsilon: [8]")
    edit(pets / "pets.yaml", r"learning_rate: \[.*\]", "learning_rate: [0.005, 0.01]")
    edit(pets / "pets.yaml", "seeds: 3", "seeds: 1")
    dpsweep(environment, pets, "run", FIGURE, "--", "--cores", "2")
    assert (pets / "results/pets/figures" / f"{FIGURE}.png").stat().st_size > 0


def edit(study: Path, written: str, other: str) -> None:
    """Edit a study, as its first lines suggest."""
    text, found = re.subn(written, other, study.read_text())
    assert found == 1, written
    study.write_text(text)
