"""Outputs of a study: what the missing ones cost, the state of cells, and files of former settings."""

import copy
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.described import study_of
from tests.synthetic import make_study
from tests.workflow.chain import STUDY
from typer.testing import CliRunner

from dpsweep.base.errors import DpsweepError
from dpsweep.base.files import write_json, write_text
from dpsweep.base.formatting import duration
from dpsweep.cli.main import app
from dpsweep.cli.run import target_files
from dpsweep.planning.cost import ProblemCost
from dpsweep.planning.outputs import NormsKey, Output, Outputs, former_files, remove
from dpsweep.planning.plan import CostEstimate, Plan, Status
from dpsweep.study import Cell, Study
from dpsweep.study.paths import Paths

SWEEP, OTHER = "digits_vit_film", "digits_vit_film_sgd"


def content() -> dict[str, Any]:
    """Return the study of the workflow tests with a second sweep and an audit."""
    content = copy.deepcopy(STUDY)
    content["sweeps"][SWEEP]["clipping_bound"] = [0.1, 1.0, 10.0]
    other = {"optimizer": "sgd", "epochs": [2, 64], "seeds": 4}
    content["sweeps"][OTHER] = content["sweeps"][SWEEP] | other
    content["figures"]["heatmap"]["panels"][0]["clipping_bound"] = [0.1, 1.0]
    content["audit"] = {
        **{"sweep": SWEEP, "epsilon": [1.0, 8.0], "epochs": 2, "batch_size": [128]},
        **{"clipping_bound": 1.0, "learning_rate": 0.01, "canaries": 100, "guesses": 20},
    }
    return content


@pytest.fixture(scope="module")
def study() -> Study:
    return study_of(content())


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "results")


@pytest.fixture(scope="module")
def cells(study: Study) -> list[Cell]:
    return study.sweep_cells(SWEEP)


def finish_output(output: Output) -> None:
    """Write the files of an output."""
    for file in output.files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(output.name)


def finish_cell(
    study: Study, paths: Paths, cell: Cell, seconds: float = 1.0, gpus: int = 1
) -> None:
    """Write a cell, and those of its inputs that are missing."""
    makers = {file: output for output in Outputs(study, paths).every() for file in output.files}

    def finish(output: Output) -> None:
        for maker in {makers[file].name: makers[file] for file in output.inputs}.values():
            if maker.missing():
                finish(maker)
        finish_output(output)

    finish(Outputs(study, paths).cell(cell))
    write_json(paths.cell_timing(study, cell), {"trial_seconds": seconds, "gpus": gpus})


# -- the plan --------------------------------------------------------------------------------


def test_everything_is_planned_once(study: Study, paths: Paths) -> None:
    estimates = Plan(study, paths).estimates()
    # 2 batch sizes and 3 bounds; 3 trials a cell, 5 with four seeds.
    assert (estimates[SWEEP].cells, estimates[SWEEP].trials) == (6, 18)
    assert (estimates[OTHER].cells, estimates[OTHER].trials) == (12, 60)
    assert estimates["audit (2)"].trials == 2
    seconds, norms = ProblemCost(study, SWEEP).seconds("gradient_norms", 2), "gradient norms (1)"
    assert estimates[norms] == CostEstimate(0, 0, seconds, seconds, estimates[norms].bytes)
    costs = {epochs: ProblemCost(study, OTHER).cell(epochs).seconds for epochs in (2, 64)}
    assert estimates[OTHER].seconds == pytest.approx(6 * sum(costs.values()))
    assert estimates[OTHER].longest == pytest.approx(costs[64])
    assert Plan(study, paths, ["all"]).estimates() == estimates
    assert Plan(study, paths, [str(paths.report)]).estimates() == estimates


def test_finished_outputs_are_subtracted(study: Study, paths: Paths) -> None:
    before = Plan(study, paths).estimates()
    done, cost = study.sweep_cells(SWEEP)[1], ProblemCost(study, SWEEP)
    finish_cell(study, paths, done, seconds=cost.cell(2).seconds)  # as estimated
    after = Plan(study, paths).estimates()
    assert after[SWEEP].cells == 5
    assert after[SWEEP].seconds == pytest.approx(before[SWEEP].seconds * 5 / 6)
    assert after[SWEEP].bytes == pytest.approx(before[SWEEP].bytes - cost.bytes("train", done))
    outputs = Outputs(study, paths)
    finish_output(outputs.audited(study.audit_cells()[0]))
    left = Plan(study, paths).estimates()
    assert set(left) == {SWEEP, OTHER, "gradient norms (1)", "theory (1)", "audit (1)"}
    for cell in (*study.sweep_cells(SWEEP), *study.sweep_cells(OTHER)):
        finish_cell(study, paths, cell)
    assert set(Plan(study, paths).estimates()) == {"gradient norms (1)", "theory (1)", "audit (1)"}
    finish_output(outputs.gradient_norms(NormsKey(SWEEP, 8.0, 2, 1.0)))
    (cell,) = outputs.drawn_theory()
    finish_output(outputs.theory(cell))
    assert set(Plan(study, paths).estimates()) == {"audit (1)"}
    plan = Plan(study, paths, [SWEEP, OTHER])
    assert plan.estimates() == {}
    assert next(plan.lines()).startswith("18 of 18 cells are done")


def test_a_widened_grid_plans_only_the_new_trials(study: Study, paths: Paths) -> None:
    grid = study.sweeps[SWEEP]
    kept = [(rate, 1) for rate in grid.learning_rates] + [(grid.learning_rates[0], 2)]
    for number, cell in enumerate(study.sweep_cells(SWEEP)):
        keys = [[*trial, f"{number}{place}"] for place, trial in enumerate(kept)]
        for *_, key in keys:
            paths.trial(key).parent.mkdir(parents=True, exist_ok=True)
            paths.trial(key).touch()
        write_json(paths.cell_timing(study, cell), {"trial_seconds": 3.0, "keys": keys})

    def planned(privacy: dict[str, Any] | None = None) -> CostEstimate:
        edited = content()
        edited["sweeps"][SWEEP] |= {"learning_rate": [*grid.learning_rates, 1.0], "seeds": 3}
        edited["privacy"] = edited.get("privacy", {}) | (privacy or {})
        return Plan(study_of(edited), paths, [SWEEP]).estimates()[SWEEP]

    widened = planned()
    # A cell has 3 rates with the first seed, and 2 further seeds: 2 of these 5 trials are new.
    assert (widened.cells, widened.trials) == (6, 12)
    other = planned({"delta": 1e-6})
    assert other.trials == 30 and widened.seconds == pytest.approx(0.4 * other.seconds)
    shutil.rmtree(paths.trials)
    assert planned().trials == 30


def test_measured_times_correct_the_estimate(study: Study, paths: Paths) -> None:
    cost, other = (ProblemCost(study, each) for each in (SWEEP, OTHER))
    finish_cell(study, paths, study.sweep_cells(SWEEP)[0], seconds=3 * cost.cell(2).seconds)
    estimates = Plan(study, paths).estimates()
    assert estimates[SWEEP].seconds == pytest.approx(5 * 3 * cost.cell(2).seconds)
    assert estimates[OTHER].longest == pytest.approx(3 * other.cell(64).seconds)
    norms = estimates["gradient norms (1)"].seconds
    assert norms == pytest.approx(3 * cost.seconds("gradient_norms", 2))


def test_the_gpu_hours_of_a_trial_on_several_gpus(study: Study, paths: Paths) -> None:
    """The work is divided; every GPU has the start of the job and the overhead of each step."""
    training = study.training.model_copy(update={"gpus": 4})
    several = study.model_copy(update={"training": training})
    cells = study.all_cells()
    alone, together = (
        Plan(each, paths, [f"{SWEEP}/{cells[0].name}"]).estimates()[SWEEP]
        for each in (study, several)
    )
    assert alone.longest / 4 < together.longest < alone.longest
    assert together.seconds == pytest.approx(4 * together.longest)
    norms = Plan(several, paths, ["norms"]).estimates()["gradient norms (1)"]
    assert norms.seconds == pytest.approx(4 * norms.longest)
    # What was measured on several GPUs is time of each of them.
    finish_cell(several, paths, cells[0], seconds=100.0, gpus=4)
    assert Status(several, paths).of(cells[:1]).spent == 400.0


@pytest.mark.parametrize(
    ("target", "cells"),
    [
        ("heatmap", 4),
        ("{R}/figures/heatmap.pdf", 4),
        ("norms", 2),
        ("{R}/cells/digits_vit_film/eps8_epochs2_Bfull_C10/trials.parquet", 1),
        (f"{{R}}/problems/{OTHER}.parquet", 12),
        ("grid", 0),
        ("heatmap norms heatmap", 4),  # which share cells
    ],
)
def test_targets_need_their_own_cells(study: Study, paths: Paths, target: str, cells: int) -> None:
    plan = Plan(study, paths, target.replace("{R}", str(paths.results)).split())
    assert sum(estimate.cells for estimate in plan.estimates().values()) == cells
    assert ("gradient norms (1)" in plan.estimates()) == ("norms" in target)
    for unknown in ("heatmaps", f"{OTHER}/eps8_epochs3_B128_C1", str(paths.results)):
        with pytest.raises(DpsweepError, match="allowed: "):
            Plan(study, paths, [unknown])


def test_a_target_is_every_file_of_its_outputs(
    study: Study, paths: Paths, cells: list[Cell]
) -> None:
    """Snakemake makes only the files that are named."""
    every, cell = Outputs(study, paths), f"{SWEEP}/{cells[0].name}"
    for target, made in {
        "heatmap": every.figure("heatmap"),
        "grid": every.table("grid"),
        SWEEP: every.problem(SWEEP),
        cell: every.cell(cells[0]),
        str(paths.cell(cells[0])): every.cell(cells[0]),
    }.items():
        assert target_files(study, paths, target) == list(map(str, made.files))
    for target in ("report", str(paths.explore)):
        assert target_files(study, paths, target) == [target]
    wrong = cell.replace("epochs", "epoch")
    for each, nearest in (("heatmp", "heatmap"), (wrong, cells[0].name)):
        with pytest.raises(DpsweepError, match=rf"did you mean {nearest}\?"):
            target_files(study, paths, each)


def test_wall_time_has_two_limits(study: Study, paths: Paths) -> None:
    cost = ProblemCost(study, OTHER).cell(64).seconds
    plan = Plan(study, paths, [f"{OTHER}/eps8_epochs64_B128_C{bound}" for bound in (0.1, 1, 10)])
    wall = next(line for line in plan.lines([1, 2, 3, 50]) if line.startswith("Wall time"))
    times = [duration(cost * share) for share in (3, 1.5, 1, 1)]
    assert len(set(times)) == 3
    assert wall.endswith(f"{times[0]} at 1, {times[1]} at 2, {times[2]} at 3, {times[3]} at 50.")


def test_a_plan_has_the_release_in_the_place_of_sweeps_that_are_refused(paths: Paths) -> None:
    settings = {"epsilon": 4.0, "epochs": [2], "batch_size": ["full"], "clipping_bound": [1.0]}
    tuned = settings | {"learning_rate": [0.01, 0.1], "selection": "private", "mean_trials": 3.5}
    study = study_of(content() | {"release": {"sweep": SWEEP} | tuned})
    release = Plan(study, paths, refused={SWEEP}).estimates()["release"]
    one = ProblemCost(study, SWEEP).cell(2, trials=1).seconds
    assert (release.cells, release.trials) == (0, 4)
    assert release.seconds == pytest.approx(3.5 * one)
    everything = Plan(study, paths).estimates()
    assert "release" not in everything
    left = Plan(study, paths, refused={SWEEP}).estimates()
    assert SWEEP not in left and left[OTHER] == everything[OTHER]
    assert set(Plan(study, paths, ["release"]).estimates()) == {"release"}
    text = "\n".join(Plan(study, paths, refused={SWEEP, OTHER}).lines())
    assert "cells are done" not in text and "release" in text
    paths.release.mkdir(parents=True)
    assert "release" not in Plan(study, paths, refused={SWEEP}).estimates()


# -- the state of cells ----------------------------------------------------------------------

NOW = 2_000_000_000.0


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


# -- files of former settings ----------------------------------------------------------------


@pytest.mark.parametrize(("change", "cells"), [({"seeds": 3}, 4), ({"epsilon": [8.0]}, 2)])
def test_only_files_of_former_settings_are_found_and_removed(
    tmp_path: Path, change: dict[str, Any], cells: int
) -> None:
    paths = Paths(tmp_path / "results")

    def finish(study: Study) -> None:
        for output in Outputs(study, paths).every():
            finish_output(output)

    sweep: dict[str, Any] = {"epsilon": [1.0, 8.0], "batch_size": [100, "full"], "seeds": 2}
    before, after = make_study({"s": sweep}), make_study({"s": sweep | change})
    finish(before)
    trial = paths.trials / "ab" / "abcd.safetensors"
    trial.parent.mkdir(parents=True)
    trial.write_text("a finished trial")
    finish(after)
    found = former_files(paths, [after])
    wanted = {file for output in Outputs(after, paths).every() for file in output.files}
    outputs = map(Outputs(before, paths).cell, before.all_cells())
    former = {file for output in outputs for file in output.files} - wanted
    assert len(former) == 2 * cells  # trials and steps
    assert former <= set(found)
    assert not wanted & set(found)
    # A study that shares the folder keeps its files.
    assert former_files(paths, [after, before]) == []
    kept = set(filter(Path.is_file, paths.results.rglob("*"))) - set(found)
    remove(found)
    assert set(filter(Path.is_file, paths.results.rglob("*"))) == kept
    assert trial.exists()
    assert not any(not list(folder.iterdir()) for folder in (paths.results / "cells").rglob("*/"))
