"""Commands of stages: plans of former settings, GPUs, signals, noise of a setting, refusals."""

import copy
import os
import re
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import pandas as pd
import pytest
import yaml

from dpsweep.base.errors import DpsweepError
from dpsweep.base.gpus import Gpu
from dpsweep.cli import options, releases, stages
from dpsweep.figures import audit
from dpsweep.planning.outputs import NormsKey, Outputs
from dpsweep.privacy import Sampling
from dpsweep.study import Cell, load_study
from dpsweep.study.datasets import held_out_rows
from dpsweep.study.load import RESULTS
from dpsweep.study.paths import Paths
from dpsweep.training.processes import Interrupted, interruption
from tests.described import described
from tests.workflow.chain import ROOT, STUDY

PROBLEM, CELL = "digits_vit_film", "eps8_epochs2_Bfull_C1"
SETTING: dict[str, Any] = {"sweep": PROBLEM, "batch_size": ["full"]}


def edit(*path: str, to: Any) -> Callable[[dict[str, Any]], None]:
    """Return a function that sets a key of a study."""

    def edit(study: dict[str, Any]) -> None:
        *sections, key = path
        for each in sections:
            study = study.setdefault(each, {})
        study[key] = to

    return edit


no_sweep = edit("sweeps", PROBLEM, "batch_size", to=[128])
more_seeds = edit("sweeps", PROBLEM, "seeds", to=3)
other_pictures = edit("datasets", "digits", "image_size", to=16)
other_network = edit("backbones", "vit", "std", to=[0.25])
other_features = edit("backbones", "frozen", "features", to={"transformation": "unit-norm"})
other_delta = edit("privacy", "delta", to=1e-6)
other_draws = edit("theory", "draws", to=1)
other_title = edit("methods", "film", "title", to="Scales and shifts")
other_folder = edit("results", to="results2")
other_canaries = edit("audit", "canaries", to=200)

# Of every stage: its arguments, the function that works, edits of its settings.
Job = tuple[list[Any], str, list[Callable[[dict[str, Any]], None]]]
JOBS: dict[str, Job] = {
    "prepare_dataset": (["digits"], "data.prepare.prepare", [other_pictures]),
    "prepare_backbone": (["vit"], "models.prepare.prepare", [other_network]),
    "compute_features": (
        ["digits", "frozen"], "training.features.compute_features", [other_features],
    ),
    "calibrate": (
        ["digits", 8.0, 2, "full"], "privacy.calibration.calibrate_sampling", [other_delta],
    ),
    "train": (
        [PROBLEM, CELL], "training.cell.OpenCell.open",
        [more_seeds, other_pictures, other_network, other_delta, no_sweep],
    ),
    "theory": (
        [PROBLEM, CELL], "training.gradient_norms.measure_overlap",
        [more_seeds, other_draws, no_sweep],
    ),
    # Without the sweep, other cells compete for the best batch size.
    "gradient_norms": (
        [PROBLEM, 8.0, 2, "1"], "training.gradient_norms.measure_gradient_norms",
        [more_seeds, no_sweep],
    ),
    "audit_setting": (
        [CELL], "training.canaries.measure_setting", [other_canaries, other_delta],
    ),
    "figure": (["heatmap"], "figures.draw", [other_title, more_seeds]),
    "aggregate": ([PROBLEM], "analysis.frames.write_problem", [more_seeds, no_sweep]),
    "audit_evidence": ([], "figures.audit.write_audit", [other_canaries, other_title]),
    "explore": ([None], "report.write_explore", [more_seeds, other_title]),
    "report": (
        [None], "planning.outputs.Outputs.trained", [more_seeds, other_title, no_sweep],
    ),
    "table": (["grid"], "tables.write", [other_title, no_sweep]),
}  # fmt: skip
TRAINING = ("train", "theory", "gradient_norms", "compute_features", "audit_setting", "release")


class ReachedError(Exception):
    """The stage began its work."""


@pytest.fixture
def content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return a study with a job of every stage; no stage works. The machine has two GPUs."""

    def work(*_: object, **__: object) -> NoReturn:
        raise ReachedError

    for _, works, _ in JOBS.values():
        monkeypatch.setattr(f"dpsweep.{works}", work)
    monkeypatch.setattr("dpsweep.training.processes.refuse_network", lambda: None)
    gpus = [Gpu(str(each), f"GPU-{each}0", "H100", 80.0) for each in range(2)]
    monkeypatch.setattr("dpsweep.base.gpus.visible_gpus", lambda: gpus)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # where the locks are
    monkeypatch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", "")
    study = copy.deepcopy(STUDY) | {"results": str(tmp_path / "results")}
    study["methods"]["head"] = {"kind": "head"}
    weights = {"kind": "file", "path": "vit.safetensors"}
    study["backbones"]["frozen"] = study["backbones"]["vit"] | {"weights": weights, "features": {}}
    head = {"backbone": "frozen", "method": "head"}
    study["sweeps"]["digits_frozen_head"] = study["sweeps"][PROBLEM] | head
    study["audit"] = SETTING | {"epsilon": [8.0], "epochs": 2, "canaries": 100, "guesses": 20}
    study["audit"] |= {"clipping_bound": 1.0, "learning_rate": 0.01}
    study["release"] = SETTING | {"epsilon": 8.0, "epochs": [2], "clipping_bound": [1.0]}
    study["release"] |= {"learning_rate": [0.01]}
    return study


def write(content: dict[str, Any], folder: Path) -> Path:
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(described(content, folder)))
    return file


# -- plans of former settings --------------------------------------------------------------------


def planned_hash(name: str, file: Path) -> str:
    """Return the hash that the workflow hands to a job."""
    hashes: list[str] = []

    def noted(_: str | None, find: Callable[[], Any], settings: Callable[[Any], str]) -> Any:
        hashes.append(settings(found := find()))
        return found

    with patch.object(options, "check_planned", noted), pytest.raises(ReachedError):
        getattr(stages, name)(*JOBS[name][0], study_file=file)
    return hashes[0]


@pytest.mark.parametrize("name", JOBS)
def test_a_job_of_former_settings_does_nothing(
    name: str, content: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, _, edits = JOBS[name]
    file = write(content, tmp_path)
    planned, command = planned_hash(name, file), getattr(stages, name)
    with pytest.raises(ReachedError):
        command(*words, study_file=file, planned=planned)
    monkeypatch.setenv(RESULTS, content["results"])
    for change in [*edits, other_folder]:
        edited = copy.deepcopy(content)
        change(edited)
        write(edited, tmp_path)
        with pytest.raises(DpsweepError, match="changed after this job was planned") as said:
            command(*words, study_file=file, planned=planned)
        assert said.value.remake == ("all",)  # the message ends with the command


def test_a_longer_grid_and_a_title_let_jobs_of_training_finish(
    content: dict[str, Any], tmp_path: Path
) -> None:
    names = ("prepare_dataset", "prepare_backbone", "calibrate", "train", "theory")
    file = write(content, tmp_path)
    planned = {name: planned_hash(name, file) for name in names}
    content["sweeps"][PROBLEM]["clipping_bound"] = [0.1, 1.0, 10.0]
    other_title(content)
    write(content, tmp_path)
    for name, before in planned.items():
        with pytest.raises(ReachedError):
            getattr(stages, name)(*JOBS[name][0], study_file=file, planned=before)


def test_the_digits_of_a_file_are_the_hash_of_its_job(
    content: dict[str, Any], tmp_path: Path
) -> None:
    file = write(content, tmp_path)
    study = load_study(file)
    outputs = Outputs(study, Paths(Path(study.results)))
    cell = Cell.parse(PROBLEM, CELL)
    for name, output in {
        "calibrate": outputs.noise("digits", 8.0, 2, "full"),
        "train": outputs.cell(cell),
        "theory": outputs.theory(cell),
        "gradient_norms": outputs.gradient_norms(NormsKey(PROBLEM, 8.0, 2, 1.0)),
    }.items():
        assert output.files[0].stem.rpartition("-")[2] == planned_hash(name, file)


def test_every_rule_that_knows_its_settings_hands_them_to_its_command() -> None:
    rules = "\n".join(file.read_text() for file in (ROOT / "workflow/rules").glob("*.smk"))
    bodies = re.split(r"^\s*rule \w+:", rules, flags=re.MULTILINE)[1:]
    knowing = [body for body in bodies if re.search(r"\bsettings[}=]", body)]
    assert len(knowing) == len(JOBS) + 1  # and the tokenizer
    for body in knowing:
        assert re.search(r"--planned \{(wildcards|params)\.settings\}", body), body


# -- training ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRAINING)
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_job_refuses_the_network_hides_other_gpus_and_ends_at_a_signal(
    name: str,
    number: signal.Signals,
    content: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused: list[bool] = []

    def train(*_: object) -> None:
        assert refused and os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-00"
        os.kill(os.getpid(), number)
        if stop := interruption(saved=False):
            raise stop

    works = "release.train.write_release" if name == "release" else JOBS[name][1]
    command = releases.release if name == "release" else getattr(stages, name)
    words = [] if name == "release" else JOBS[name][0]
    monkeypatch.setattr(f"dpsweep.{works}", train)
    monkeypatch.setattr("dpsweep.training.processes.refuse_network", lambda: refused.append(True))
    signal.signal(number, signal.SIG_IGN)  # a command without a handler must not end the tests
    with caplog.at_level("INFO"), pytest.raises(Interrupted):
        command(*words, study_file=write(content, tmp_path))
    assert f"stopped by {number.name}" in caplog.text


@pytest.mark.parametrize("batch", ["full", "100"])
def test_noise_is_calibrated_for_the_training_setting(
    batch: str, content: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def noted(*given: Any, **_: Any) -> NoReturn:
        asked.append(given)
        raise ReachedError

    monkeypatch.setattr("dpsweep.privacy.calibration.calibrate_sampling", noted)
    content["privacy"] = {"delta": 3e-6, "step_rounding": "ceil"}
    content["training"] = {"select_on": "holdout", "holdout_share": 0.25}
    with pytest.raises(ReachedError):
        stages.calibrate("digits", 8.0, 3, batch, write(content, tmp_path))
    size = 1347 - len(held_out_rows(1347, 0.25))
    steps = {"full": 3, "100": 3 * -(-size // 100)}[batch]
    assert asked == [(8.0, 3e-6, Sampling(size, size if batch == "full" else 100, steps))]


# -- refusals ------------------------------------------------------------------------------------


def test_an_audit_with_a_refuted_claim_fails() -> None:
    rows = [
        {"epsilon": epsilon, "curve_bound": bound, "consistent": bound <= epsilon}
        | {"noise_bound": 0.8 * epsilon, "curve_finds_0.5": 0.5, "noise_finds_0.5": 0.5}
        | {"batch_size": 64, "full_batch": False, "sampling_rate": 0.25, "steps": 4}
        | {"noise_multiplier": 1.0, "correct": 30, "guesses": 40}
        for epsilon, bound in ((1.0, 0.5), (2.0, 2.5))
    ]
    found = pd.DataFrame(rows)
    with pytest.raises(
        audit.AuditFailedError, match=r"refutes 1 of 2 claims \(B = 64: claimed ε = 2"
    ):
        audit.check_audit(found)
    audit.check_audit(found[:1])
    said = audit.verdict(found[:1])
    assert said.startswith("The audit refutes none of 1 claims") and "at most 0.80 of it" in said
    assert [row[-1] for row in audit.show(found).rows] == ["stands", "REFUTED"]
