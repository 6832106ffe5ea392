"""Commands that train: each takes one GPU, refuses the network, and ends at a signal."""

import copy
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import pytest
import yaml

from dpsweep.base.gpus import Gpu
from dpsweep.cli import releases, stages
from dpsweep.training.job import Interrupted, interruption
from tests.described import described
from tests.workflow.chain import STUDY

PROBLEM, CELL = "digits_vit_film", "eps8_epochs2_B128_C1"
SETTING: dict[str, Any] = {"sweep": PROBLEM, "epochs": [2], "batch_size": [128]}
GPUS = [Gpu(str(each), f"GPU-{each}0", "H100", 80.0) for each in range(2)]
# Each with its arguments and the function that trains.
COMMANDS: dict[str, tuple[Callable[..., None], list[Any], str]] = {
    "train": (stages.train, [PROBLEM, CELL], "training.cell.OpenCell.open"),
    "gradient norms": (
        stages.gradient_norms,
        [PROBLEM, 8.0, 2, "1"],
        "training.gradient_norms.measure_gradient_norms",
    ),
    "theory": (stages.theory, [PROBLEM, CELL], "training.gradient_norms.measure_overlap"),
    "features": (stages.compute_features, ["digits", "vit"], "training.features.compute_features"),
    "audit": (stages.audit_setting, [CELL], "training.canaries.measure_setting"),
    "release": (releases.release, [], "release.train.write_release"),
}


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    study = copy.deepcopy(STUDY) | {
        "results": str(tmp_path / "results"),
        "audit": SETTING
        | {"epsilon": [8.0], "epochs": 2, "clipping_bound": 1.0, "learning_rate": 0.01}
        | {"canaries": 100, "guesses": 20},
        "release": SETTING | {"epsilon": 8.0, "clipping_bound": [1.0], "learning_rate": [0.01]},
    }
    study["methods"]["head"] = {"kind": "head"}
    study["backbones"]["vit"] |= {
        "weights": {"kind": "file", "path": "vit.safetensors"},
        "features": {},
    }
    study["sweeps"]["digits_vit_head"] = study["sweeps"][PROBLEM] | {"method": "head"}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(described(study, tmp_path)))
    return tmp_path / "study.yaml"


@pytest.fixture(autouse=True)
def workstation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with two GPUs; an unhandled signal does not end the tests."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the locks are
    refused: list[bool] = []
    monkeypatch.setattr("dpsweep.training.job.refuse_network", lambda: refused.append(True))
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    monkeypatch.setattr("dpsweep.base.gpus.visible_gpus", lambda: GPUS)
    with patch.dict(os.environ):
        yield
    assert refused, "it trains without having refused the network"
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("name", COMMANDS)
def test_training_commands_take_one_gpu_and_hide_the_others(
    name: str, study_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, arguments, trains = COMMANDS[name]

    class TrainingError(Exception):
        pass

    def train(*_: object) -> NoReturn:
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-00"
        raise TrainingError

    monkeypatch.setattr(f"dpsweep.{trains}", train)
    with pytest.raises(TrainingError):
        command(*arguments, study_file=study_file)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_ends_training_commands(
    name: str,
    number: signal.Signals,
    study_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    command, arguments, trains = COMMANDS[name]

    def train(*_: object) -> None:
        if signal.getsignal(number) != signal.SIG_DFL:
            os.kill(os.getpid(), number)
        if stop := interruption(saved=False):
            raise stop

    monkeypatch.setattr(f"dpsweep.{trains}", train)
    with caplog.at_level("INFO"), pytest.raises(Interrupted):
        command(*arguments, study_file=study_file)
    assert f"stopped by {number.name}" in caplog.text
