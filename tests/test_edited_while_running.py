"""A study that is edited while it runs: jobs planned before the edit end before their work."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

from dpsweep.base.errors import DpsweepError
from dpsweep.cli import stages
from dpsweep.planning.outputs import NormsKey, Outputs
from dpsweep.study import Cell, Study, fingerprints, load_study
from dpsweep.study.load import RESULTS
from dpsweep.study.paths import Paths
from tests.described import described
from tests.workflow.chain import ROOT, STUDY

PROBLEM, CELL = "digits_vit_film", "eps8_epochs2_Bfull_C1"
THE_CELL = Cell.parse(PROBLEM, CELL)


def digits_of(file: Path) -> str:
    """Return the digits at the end of a planned file's name."""
    return file.stem.rpartition("-")[2]


def no_sweep(study: dict[str, Any]) -> None:
    study["sweeps"][PROBLEM]["batch_size"] = [128]


def more_seeds(study: dict[str, Any]) -> None:
    study["sweeps"][PROBLEM]["seeds"] = 3


def other_pictures(study: dict[str, Any]) -> None:
    study["datasets"]["digits"]["image_size"] = 16


def other_network(study: dict[str, Any]) -> None:
    study["backbones"]["vit"]["std"] = [0.25]


def other_features(study: dict[str, Any]) -> None:
    study["backbones"]["frozen"]["features"] = {"transformation": "unit-norm"}


def other_delta(study: dict[str, Any]) -> None:
    study["privacy"] = {"delta": 1e-6}


def other_draws(study: dict[str, Any]) -> None:
    study["theory"] = {"draws": 1}


def other_title(study: dict[str, Any]) -> None:
    study["methods"]["film"]["title"] = "Scales and shifts"


def other_folder(study: dict[str, Any]) -> None:
    study["results"] = f"{study['results']}2"


def other_canaries(study: dict[str, Any]) -> None:
    study["audit"]["canaries"] = 200


# Of every stage: its arguments, the function that works, the planned hash, edits of its settings.
Job = tuple[list[Any], str, Callable[[Study, Outputs], str], list[Callable[[dict[str, Any]], None]]]
JOBS: dict[str, Job] = {
    "prepare_dataset": (
        ["digits"],
        "data.prepare.prepare",
        lambda study, _: fingerprints.source_fingerprint(study.datasets["digits"]),
        [other_pictures],
    ),
    "prepare_backbone": (
        ["vit"],
        "models.prepare.prepare",
        lambda study, _: fingerprints.source_fingerprint(study.backbones["vit"]),
        [other_network],
    ),
    "compute_features": (
        ["digits", "frozen"],
        "training.features.compute_features",
        lambda study, _: fingerprints.section_fingerprint(study.backbones["frozen"].features),
        [other_features],
    ),
    "calibrate": (
        ["digits", 8.0, 2, "full"],
        "privacy.calibration.calibrate_sampling",
        lambda _, outputs: digits_of(outputs.noise("digits", 8.0, 2, "full").files[0]),
        [other_delta],
    ),
    "train": (
        [PROBLEM, CELL],
        "training.cell.OpenCell.open",
        lambda _, outputs: digits_of(outputs.cell(THE_CELL).files[0]),
        [more_seeds, other_pictures, other_network, other_delta, no_sweep],
    ),
    "theory": (
        [PROBLEM, CELL],
        "training.gradient_norms.measure_overlap",
        lambda _, outputs: digits_of(outputs.theory(THE_CELL).files[0]),
        [more_seeds, other_draws, no_sweep],
    ),
    "gradient_norms": (
        [PROBLEM, 8.0, 2, "1"],
        "training.gradient_norms.measure_gradient_norms",
        lambda _, outputs: digits_of(
            outputs.gradient_norms(NormsKey(PROBLEM, 8.0, 2, 1.0)).files[0]
        ),
        [more_seeds, no_sweep],  # other cells compete for the best batch size
    ),
    "audit_setting": (
        [CELL],
        "training.canaries.measure_setting",
        lambda study, _: fingerprints.audit_fingerprint(study),
        [other_canaries, other_delta],
    ),
    "figure": (
        ["heatmap"],
        "figures.draw",
        lambda study, _: fingerprints.target_fingerprint(study, study.figures["heatmap"]),
        [other_title, more_seeds],
    ),
    "aggregate": (
        [PROBLEM],
        "analysis.frames.write_problem",
        lambda study, _: fingerprints.problem_fingerprint(study, PROBLEM),
        [more_seeds, no_sweep],
    ),
    "audit_evidence": (
        [],
        "figures.audit.write_audit",
        lambda study, _: fingerprints.report_fingerprint(study),
        [other_canaries, other_title],
    ),
    "explore": (
        [None],
        "report.write_explore",
        lambda study, _: fingerprints.report_fingerprint(study),
        [more_seeds, other_title],
    ),
    "report": (
        [None],
        "planning.outputs.Outputs.trained",
        lambda study, _: fingerprints.report_fingerprint(study),
        [more_seeds, other_title, no_sweep],
    ),
    "table": (
        ["grid"],
        "tables.write",
        lambda study, _: fingerprints.target_fingerprint(study, study.tables["grid"]),
        [other_title, no_sweep],
    ),
}


class ReachedError(Exception):
    """The stage began its work."""


@pytest.fixture
def content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the sections of a study with a job of every stage; no stage works."""

    def work(*_: object, **__: object) -> NoReturn:
        raise ReachedError

    for _, works, _, _ in JOBS.values():
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


@pytest.mark.parametrize("name", JOBS)
def test_a_job_of_former_settings_does_nothing(
    name: str, content: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, _, hash_of, edits = JOBS[name]
    file = write(content, tmp_path)
    study = load_study(file)
    planned = hash_of(study, Outputs(study, Paths(Path(study.results))))
    command = getattr(stages, name)
    for unchanged in (planned, None):
        with pytest.raises(ReachedError):
            command(*words, study_file=file, planned=unchanged)
    monkeypatch.setenv(RESULTS, study.results)
    for edit in [*edits, other_folder]:
        edited = copy.deepcopy(content)
        edit(edited)
        write(edited, tmp_path)
        with pytest.raises(DpsweepError, match="changed after this job was planned") as said:
            command(*words, study_file=file, planned=planned)
        assert said.value.remake == ("all",), edit  # the message ends with the command


def test_an_edit_of_another_setting_lets_jobs_finish(
    content: dict[str, Any], tmp_path: Path
) -> None:
    """A grid that becomes longer while it runs, and titles, concern no job of training."""
    study = load_study(write(content, tmp_path))
    content["sweeps"][PROBLEM]["clipping_bound"] = [0.1, 1.0, 10.0]
    other_title(content)
    file = write(content, tmp_path)
    outputs = Outputs(study, Paths(Path(study.results)))
    for name in ("prepare_dataset", "prepare_backbone", "calibrate", "train", "theory"):
        words, _, hash_of, _ = JOBS[name]
        with pytest.raises(ReachedError):
            getattr(stages, name)(*words, study_file=file, planned=hash_of(study, outputs))


def test_every_rule_that_knows_its_settings_hands_them_to_its_command() -> None:
    rules = "\n".join(file.read_text() for file in (ROOT / "workflow/rules").glob("*.smk"))
    found = set()
    for rule in re.split(r"^\s*rule ", rules, flags=re.MULTILINE)[1:]:
        name, body = rule.split(":", 1)
        if re.search(r"\bsettings[}=]", body):
            assert re.search(r"--planned \{(wildcards|params)\.settings\}", body), name
            found.add(name)
    assert len(found) == len(JOBS) + 1  # and the tokenizer
