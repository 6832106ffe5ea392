"""An installed package runs the workflow in an empty folder, without a clone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# A study of one's own, as small as it can be: two calibrations.
STUDY = """\
extends: paper
results: results/mine
figures: !replace {}
tables: !replace {}
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
    return subprocess.run(
        [sys.executable, "-m", "dpsweep.cli", *words],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_a_study_runs_in_an_empty_folder(installed: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(STUDY)
    noise = "results/mine/noise/cifar100/eps8_epochs8_B256.json"
    dry = dpsweep(installed, tmp_path, "run", "mine.yaml", noise, "-n")
    assert dry.returncode == 0, dry.stderr
    assert not (tmp_path / "results").exists()
    done = dpsweep(installed, tmp_path, "run", "mine.yaml", noise, "--cores", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / noise).exists()
    again = dpsweep(installed, tmp_path, "run", "mine.yaml", noise, "--cores", "1")
    assert "Nothing to be done" in again.stdout + again.stderr
    place = subprocess.run(
        [sys.executable, "-c", "import dpsweep; print(dpsweep.__file__)"],
        cwd=tmp_path, env=installed, capture_output=True, text=True, check=True,
    )  # fmt: skip
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
figures: !replace {}
tables: !replace {taba2_datasets: {family: datasets, section: Data, caption: Datasets.}}
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
    # Calibration, the cell, its problem's table, the table of datasets and the page to explore cells.
    assert len((tmp_path / "submitted").read_text().splitlines()) >= 4


@pytest.mark.slow
def test_a_profile_is_copied_to_be_edited(installed: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(STUDY)
    done = dpsweep(installed, tmp_path, "run", "mine.yaml", "--profile", "slurm", "-n")
    site = tmp_path / "profiles" / "slurm" / "site.yaml"
    assert site.exists()
    # It asks for what only its users know.
    assert done.returncode != 0
    assert "account" in done.stdout + done.stderr
