"""An installed package runs the workflow in an empty folder, without a clone."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from tests.waiting import called, wait_for
from tests.workflow.chain import ROOT, as_in_a_terminal
from tests.workflow.test_your_own_data import VIT, make_table, make_weights, picture

# A study of one's own, as small as it can be: two calibrations.
from dpsweep.study import load_study
from dpsweep.study.paths import Paths

STUDY = """\
extends: paper
results: results/mine
figures: none
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the package comes from a wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    for words in (
        ["hatchling", "build", "-t", "wheel", "-d", str(folder)],
        ["pip", "install", "--no-deps", "--no-index", "--target", str(folder / "site")],
    ):
        wheels = [str(file) for file in folder.glob("*.whl")]
        call = [sys.executable, "-m", *words, *(wheels if "pip" in words else [])]
        subprocess.run(call, cwd=ROOT, check=True, capture_output=True)
    environment = {name: text for name, text in os.environ.items() if "DPSWEEP" not in name}
    return environment | {"PYTHONPATH": str(folder / "site")}


def dpsweep(
    environment: dict[str, str], folder: Path, *words: str
) -> "subprocess.CompletedProcess[str]":
    """Call the installed command in a folder."""
    return called([sys.executable, "-m", "dpsweep.cli", *words], folder, environment, status=None)


@pytest.mark.slow
def test_a_study_runs_in_an_empty_folder(installed: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(STUDY)
    study = load_study(tmp_path / "mine.yaml")
    noise = str(Paths(Path(study.results)).noise(study, "cifar100", 8.0, 8, 256))
    # A profile is copied to be edited.
    dry = dpsweep(installed, tmp_path, "run", "mine.yaml", noise, "--profile", "slurm", "-n")
    assert dry.returncode == 0, dry.stderr
    assert (tmp_path / "profiles" / "slurm" / "config.yaml").exists()
    assert not (tmp_path / "results").exists()
    done = dpsweep(installed, tmp_path, "run", "mine.yaml", noise, "--cores", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / noise).exists()
    again = dpsweep(installed, tmp_path, "run", "mine.yaml", noise, "--cores", "1")
    assert "Nothing to be done" in again.stdout + again.stderr
    place = called(
        [sys.executable, "-c", "import dpsweep; print(dpsweep.__file__)"], tmp_path, installed
    )
    assert place.stdout.startswith(installed["PYTHONPATH"])


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
SUBMIT = """\
#!/bin/sh
# As the command of a scheduler does: start the job elsewhere, and print its number.
nohup sh "$1" > /dev/null 2>&1 &
echo $! | tee -a submitted
"""


@pytest.mark.slow
def test_a_study_runs_by_the_commands_of_another_scheduler(
    installed: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    submit = tmp_path / "submit.sh"
    submit.write_text(SUBMIT)
    submit.chmod(0o755)
    done = dpsweep(
        installed, tmp_path,
        "run", "--executor", "cluster-generic", "--cluster-generic-submit-cmd", str(submit),
        "--jobs", "2",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "results" / "tiny" / "report.html").exists()
    # The cell; all that needs no GPU is made here.
    assert len((tmp_path / "submitted").read_text().splitlines()) == 1


@pytest.fixture(scope="module")
def offline(
    installed: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, str], Path]:
    """The environment with a cache of the hub, and a folder with images and texts."""
    folder = tmp_path_factory.mktemp("hour")
    cache, random = folder / "cache", np.random.default_rng(0)
    for label, name in enumerate(("cat", "dog", "eel")):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(60):
            file = folder / "photos" / name / f"{number}.jpg"
            file.write_bytes(picture(label, random))
    make_weights(cache, *VIT)
    make_table(folder, cache)
    environment = {"HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return installed | environment, folder


@pytest.mark.slow
def test_the_first_hour_of_a_new_user(offline: tuple[dict[str, str], Path]) -> None:
    environment, data = offline
    pets, mails, elsewhere = (data / name for name in ("pets", "mails", "elsewhere"))
    for folder in (pets, mails, elsewhere):
        folder.mkdir()

    def call(folder: Path, *words: str) -> str:
        done = dpsweep(environment, folder, *words)
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def refused(folder: Path, *words: str) -> str:
        done = dpsweep(environment, folder, *words)
        said = done.stdout + done.stderr
        assert done.returncode not in (0, 130) and "Traceback" not in said, said
        assert "mistake in dpsweep" not in said
        return said

    # Three commands to a first figure, of images.
    call(pets, "new", "pets.yaml", "--images", "../photos", "--backbone", "vit-tiny")
    edit(pets / "pets.yaml", r"epsilon: \[1, 8\]", "epsilon: [8]")
    edit(pets / "pets.yaml", r"batch_size: \[\d+, ", "batch_size: [")
    edit(pets / "pets.yaml", "count: 5", "count: 3")
    edit(pets / "pets.yaml", "seeds: 3", "seeds: 2")
    assert "1 fit their data and methods" in call(pets, "check")
    assert "did you mean fig1_accuracy_heatmaps?" in refused(pets, "run", "fig1_acuracy_heatmap")
    assert "did you mean pets.yaml?" in refused(pets, "run", "pest.yaml")
    interrupt(environment, pets)
    done = call(pets, "run", "--cores", "2")
    report = pets / "results" / "pets" / "report.html"
    assert f"Report: {report}" in done.splitlines()
    assert "Nothing to be done" in call(pets, "run", "--cores", "2")
    assert (pets / "results/pets/figures/fig1_accuracy_heatmaps.png").stat().st_size > 0

    # Another C trains the cells with it, and no other one.
    cells = {
        file: file.read_bytes() for file in pets.glob("results/pets/cells/*/*/trials-*.parquet")
    }
    edit(pets / "pets.yaml", r"clipping_bound: \[", "clipping_bound: [0.05, ")
    call(pets, "run", "pets_vit-tiny_head", "--cores", "2")
    added = set(pets.glob("results/pets/cells/*/*/trials-*.parquet")) - cells.keys()
    assert len(added) == len(cells) / 2 > 0  # beside two values of C
    assert all("_C0.05" in file.parent.name for file in added)
    assert all(file.read_bytes() == content for file, content in cells.items())

    # Texts, as they are proposed but for fewer trials, and both studies side by side.
    tables = ("--texts", "../data/mails/train.csv", "../data/mails/test.csv")
    call(mails, "new", "mails.yaml", *tables)
    edit(mails / "mails.yaml", "count: 5", "count: 2")
    edit(mails / "mails.yaml", "seeds: 3", "seeds: 1")
    call(mails, "run", "--cores", "2")
    assert (mails / "results" / "mails" / "report.html").exists()
    beside = call(elsewhere, "compare", "../pets/pets.yaml", "../mails/mails.yaml")
    assert "# Pets, and Mails" in beside

    # A model that may be released.
    said = call(pets, "recommend", "pets_vit-tiny_head", "--epsilon", "8", "--epochs", "8")
    section = said[said.index("release:") :]
    assert yaml.safe_load(section)["release"]["sweep"] == "pets_vit-tiny_head"
    with (pets / "pets.yaml").open("a") as stream:
        stream.write(section)
    call(pets, "run", "release", "--cores", "2")
    assert "(8, " in call(pets, "verify", "results/pets/release")
    certificate = pets / "results/pets/release/certificate.json"
    certificate.write_text(certificate.read_text().replace('"epsilon": 8.0', '"epsilon": 1.0', 1))
    assert "certificate.json" in refused(pets, "verify", "results/pets/release")


def edit(study: Path, written: str, other: str) -> None:
    """As the first lines of a study say: edit what you like."""
    text, found = re.subn(written, other, study.read_text())
    assert found == 1, written
    study.write_text(text)


def interrupt(environment: dict[str, str], folder: Path) -> None:
    """Press Ctrl-C while cells train."""
    said = folder.with_suffix(".txt")
    call = [sys.executable, "-m", "dpsweep.cli", "run"]
    run = as_in_a_terminal(call, folder, environment, said)
    cells = folder / "results" / "pets" / "cells"
    wait_for(lambda: list(cells.rglob("trials-*.parquet")), "a finished cell", run, every=0.01)
    os.killpg(run.pid, signal.SIGINT)
    status, text = run.wait(), said.read_text()
    assert status != 0, text
    assert "Traceback" not in text and "mistake in dpsweep" not in text
