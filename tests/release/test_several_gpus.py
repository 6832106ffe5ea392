"""A release that two processes train is that of one process, up to the order of sums."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from tests.release.releases import PRIVATE
from tests.test_gpus import LISTED, fake_nvidia_smi
from tests.training.tiny_study import tiny_sections

from dpsweep.base.files import read_checked_json
from dpsweep.cli.main import app
from dpsweep.release import CERTIFICATE, TRAINED
from dpsweep.release import train as release_training
from dpsweep.release.train import train_release
from dpsweep.release.verify import verify
from dpsweep.study import Study
from dpsweep.study.paths import Paths
from dpsweep.training import processes


def train_with_known_secrets(study: Study, paths: Paths) -> Any:
    """Train with secrets that each process would draw differently; note which processes trained."""
    rank = processes.rank()
    (paths.results / f"process {rank} of {processes.count()}").touch()
    secrets = (f"{rank} {number}".encode() for number in range(1000))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(release_training, "new_secret", lambda: next(secrets))
        return train_release(study, paths)


def released(folder: Path, prepared: Path, gpus: int) -> None:
    """Make the release of a study by its command."""
    folder.mkdir(parents=True)
    for part in ("data", "backbones"):
        (folder / part).symlink_to(prepared / part)
    section = PRIVATE | {"gpus": gpus, "learning_rate": [0.01], "mean_trials": 2.0}
    content = tiny_sections({}, {"kind": "film"}) | {"release": section, "results": str(folder)}
    (folder / "study.yaml").write_text(yaml.safe_dump(content))
    app(["release", "--study", str(folder / "study.yaml")], standalone_mode=False)


@pytest.mark.slow
def test_two_gpus_release_the_model_of_one(prepared, tmp_path, monkeypatch):
    fake_nvidia_smi(tmp_path / "bin", LISTED)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setattr("dpsweep.training.job.refuse_network", lambda: None)
    monkeypatch.setattr(release_training, "train_release", train_with_known_secrets)
    for gpus in (1, 2):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)  # a job shows itself its GPUs
        released(tmp_path / str(gpus) / "results", prepared, gpus)
    one, two = (tmp_path / str(gpus) / "results/release" for gpus in (1, 2))
    assert {each.name for each in two.parent.glob("process*")} == {
        "process 0 of 2", "process 1 of 2"
    }  # fmt: skip
    assert verify(two, ledger="none").certified_epsilon <= PRIVATE["epsilon"]
    expected, found = (read_checked_json(each / CERTIFICATE) for each in (one, two))
    for each in (expected, found):
        del each["files"][TRAINED]  # parameters differ by rounding
    assert found == expected
    wanted = load_file(one / TRAINED)
    for name, value in load_file(two / TRAINED).items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-4, atol=1e-5)
