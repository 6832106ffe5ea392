"""The state of a study, read from its files."""

import copy
import os
import shutil
from pathlib import Path

import pytest
import yaml
from tests.described import study_of
from tests.planning.finished import finish_cell
from tests.workflow.chain import STUDY
from typer.testing import CliRunner

from dpsweep.base.files import write_json, write_text
from dpsweep.cli.main import app
from dpsweep.planning.outputs import Outputs
from dpsweep.planning.status import Status
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths

SWEEP = "digits_vit_film"
NOW = 2_000_000_000.0


@pytest.fixture(scope="module")
def study() -> Study:
    content = copy.deepcopy(STUDY)
    content["sweeps"][SWEEP]["clipping_bound"] = [0.1, 1.0, 10.0]
    content["figures"]["heatmap"]["panels"][0]["clipping_bound"] = [0.1, 1.0]
    return study_of(content)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "results")


@pytest.fixture
def cells(study: Study) -> list[Cell]:
    return study.sweep_cells(SWEEP)


def log(study: Study, paths: Paths, cell: Cell, text: str, age: float) -> None:
    path = paths.cell_log(study, cell)
    write_text(path, text)
    os.utime(path, (NOW - age, NOW - age))


CUDA = """\
10:00:01 learning rate 0.001, seed 1: macro accuracy 0.5 (3.0 s)
Traceback (most recent call last):
  File "dpsweep/training/trial.py", line 301, in _step
    loss.backward()
torch.AcceleratorError: CUDA error: device-side assert triggered
CUDA kernel errors might be asynchronously reported at some other API call.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.

"""
OFFLINE = """\
10:00:00 cats: fetching
error: cannot fetch the dataset a/cats from https://huggingface.co (ConnectionError: no route).
Where there is a network, run: hf download a/cats
ConnectionError: is quoted here
"""
WENT_ON = CUDA + "10:00:02 learning rate 0.1, seed 1: macro accuracy 0.6 (3.0 s)\n"
CHECKPOINT = "10:00:00 checkpoint at step 7\n"
# The log of a cell, its age in seconds, the state of the cell, and its last words if it failed.
LOGS: list[tuple[str | None, float, str, str]] = [
    (None, 0, "waiting", ""),
    ("", 60, "running", ""),
    (CHECKPOINT, 60, "running", ""),
    (WENT_ON, 60, "running", ""),
    ("10:00:00 started\nerror: no data\n", 60, "failed", "error: no data"),
    (CUDA, 60, "failed", "torch.AcceleratorError: CUDA error: device-side assert triggered"),
    ("error: no such file:\n" + "  a\n" * 5000, 60, "failed", "error: no such file:"),
    (OFFLINE, 60, "failed", OFFLINE.splitlines()[1]),
    ("10:00:00 stopped by SIGUSR1, exit status 75\n", 60, "failed", "10:00:00 stopped by SIGUSR1"),
    (CHECKPOINT, 36_000, "failed", "10:00:00 checkpoint at step 7"),
]


@pytest.mark.parametrize(("text", "age", "state", "words"), LOGS)
def test_the_log_of_a_cell_determines_its_state_and_last_words(
    study: Study,
    paths: Paths,
    cells: list[Cell],
    text: str | None,
    age: float,
    state: str,
    words: str,
) -> None:
    if text is not None:
        log(study, paths, cells[0], text, age)
    status = Status(study, paths, NOW)
    assert [status.states[cell] for cell in cells] == [state, *["waiting"] * 5]
    assert bool(dict(status.failures())) == (state == "failed")
    if words:
        first, second, _ = status.failed_lines()
        assert first.startswith(f"{SWEEP}/{cells[0].name}: {words}")
        assert second == f"  log: {paths.cell_log(study, cells[0])}"
    finish_cell(study, paths, cells[0], 5)
    assert Status(study, paths, NOW).states[cells[0]] == "done"


def test_a_cell_waits_again_without_its_outputs_or_with_newer_inputs(
    study: Study, paths: Paths, cells: list[Cell]
) -> None:
    ended = "10:00:00 best learning rate 0.1; 2 of 2 trials trained now\n"
    write_text(paths.cell_log(study, cells[0]), ended)
    for folder in ("data", "backbones", "noise"):
        finish_cell(study, paths, cells[0], 5)
        assert Status(study, paths).states[cells[0]] == "done"
        inputs = Outputs(study, paths).cell(cells[0]).inputs
        (replaced, *_) = [file for file in inputs if f"/{folder}/" in str(file)]
        made = paths.cell_trials(study, cells[0]).stat().st_mtime_ns
        os.utime(replaced, ns=(made + 10**9, made + 10**9))
        status = Status(study, paths)
        assert status.states[cells[0]] == "waiting"
        assert status.of([cells[0]]).left > 0
        shutil.rmtree(paths.cell(cells[0]))
        replaced.unlink()
    status = Status(study, paths)
    assert status.states[cells[0]] == "waiting"
    # Its trials are in the store, so their time still counts.
    assert status.of([cells[0]]).spent == 5


def test_trials_of_a_killed_cell_count_and_correct_the_forecast(
    study: Study, paths: Paths, cells: list[Cell]
) -> None:
    estimate = Status(study, paths, NOW).forecast
    assert "A first estimate" in estimate.basis

    def kill(**timing: float) -> Status:
        write_json(paths.cell_timing(study, cells[0]), {"trial_seconds": 50.0, **timing})
        log(study, paths, cells[0], "10:00:00 stopped by SIGTERM, exit status 143\n", age=60)
        return Status(study, paths, NOW)

    progress = kill().of([cells[0]])
    assert progress.spent == 50
    assert progress.left == max(0.0, estimate.seconds(cells[0]) - 50)
    forecast = kill(trials=1).forecast
    # Three trials a cell: two learning rates, and the better one again.
    assert [forecast.seconds(cell) for cell in cells] == [150] * 6
    assert "Measured on 1 cell" in forecast.basis


def test_the_list_of_failures_has_jobs_of_every_stage(
    study: Study, paths: Paths, cells: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths.results.mkdir()
    monkeypatch.chdir(paths.results.parent)
    Path("study.yaml").write_text(yaml.safe_dump(study.model_dump(exclude_none=True)))

    def failed() -> list[str]:
        words = ["status", "--study", "study.yaml", "--failed"]
        return CliRunner().invoke(app, words, catch_exceptions=False).stdout.splitlines()

    assert failed() == ["0 jobs failed."]
    write_text(paths.results / "logs" / "prepare" / "cats.log", OFFLINE)
    for cell in cells[:2]:
        log(study, paths, cell, "12:00:00 begun\nerror: no such weights\n", age=60)
    names = ", ".join(f"{SWEEP}/{cell.name}" for cell in cells[:2])
    shown = failed()
    assert shown[0] == f"{names}: error: no such weights"
    assert shown[2].startswith("prepare/cats: error: cannot fetch the dataset a/cats")
    assert shown[-1] == "3 jobs failed. The same command again runs them."
