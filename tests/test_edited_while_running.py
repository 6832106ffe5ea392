"""A study that is edited while it runs: jobs planned before the edit end before their work."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import pytest
import yaml

from dpsweep.base.errors import DpsweepError
from dpsweep.cli import stages
from dpsweep.planning.outputs import NormsKey, Outputs
from dpsweep.study import Cell, load_study
from dpsweep.study.load import RESULTS
from dpsweep.study.paths import Paths
from tests.described import described
from tests.workflow.chain import ROOT, STUDY

PROBLEM, CELL = "digits_vit_film", "eps8_epochs2_Bfull_C1"


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


class ReachedError(Exception):
    """The stage began its work."""


@pytest.fixture
def content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the sections of a study with a job of every stage; no stage works."""

    def work(*_: object, **__: object) -> NoReturn:
        raise ReachedError

    for _, works, _ in JOBS.values():
        monkeypatch.setattr(f"dpsweep.{works}", work)
    monkeypatch.setattr("dpsweep.training.job.refuse_network", lambda: None)
    monkeypatch.setattr("dpsweep.base.gpus.visible_gpus", list)
    study = copy.deepcopy(STUDY) | {"results": str(tmp_path / "results")}
    study["methods"]["head"] = {"kind": "head"}
    weights = {"kind": "file", "path": "vit.safetensors"}
    study["backbones"]["frozen"] = study["backbones"]["vit"] | {"weights": weights, "features": {}}
    head = {"backbone": "frozen", "method": "head"}
    study["sweeps"]["digits_frozen_head"] = study["sweeps"][PROBLEM] | head
    study["audit"] = {"sweep": PROBLEM, "epsilon": [8.0], "epochs": 2, "batch_size": ["full"]} | {
        **{"clipping_bound": 1.0, "learning_rate": 0.01, "canaries": 100, "guesses": 20}
    }
    return study


def write(content: dict[str, Any], folder: Path) -> Path:
    file = folder / "study.yaml"
    file.write_text(yaml.safe_dump(described(content, folder)))
    return file


def planned_hash(name: str, file: Path) -> str:
    """Return the hash that the workflow hands to a job."""
    hashes: list[str] = []
    with (
        patch.object(stages, "check_planned", lambda _, settings: hashes.append(settings())),
        pytest.raises(ReachedError),
    ):
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


def test_an_edit_of_another_setting_lets_jobs_finish(
    content: dict[str, Any], tmp_path: Path
) -> None:
    """A grid that becomes longer while it runs, and titles, concern no job of training."""
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
    found = set()
    for rule in re.split(r"^\s*rule ", rules, flags=re.MULTILINE)[1:]:
        name, body = rule.split(":", 1)
        if re.search(r"\bsettings[}=]", body):
            assert re.search(r"--planned \{(wildcards|params)\.settings\}", body), name
            found.add(name)
    assert len(found) == len(JOBS) + 1  # and the tokenizer
