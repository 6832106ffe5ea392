"""Arguments that commands pass to their stages, and errors of commands; the stages are replaced by fakes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from dpsweep.cli.main import app
from dpsweep.figures.audit import AuditFailedError, check_audit, verdict
from dpsweep.privacy import Sampling
from dpsweep.privacy.calibration import calibrate
from dpsweep.study import StudyError
from dpsweep.study.datasets import held_out_rows
from tests.training.tiny_study import N, tiny_sections

HOLDOUT = {"select_on": "holdout", "holdout_share": 0.25}


@pytest.fixture
def study_file(tmp_path: Path) -> Path:
    """Return a study without default settings."""
    file = tmp_path / "study.yaml"
    sections = tiny_sections(HOLDOUT, {"kind": "film"})
    sections["privacy"] = {"delta": 3e-6, "step_rounding": "ceil"}
    file.write_text(yaml.safe_dump(sections | {"results": str(tmp_path / "results")}))
    return file


def call(*words: str | Path) -> None:
    app([str(each) for each in words], standalone_mode=False)


@pytest.mark.parametrize("batch", ["full", "100"])
def test_noise_is_calibrated_for_the_training_setting(
    batch: str, study_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, noise = [], calibrate(8.0, 3e-6, 200, 200, 1)

    def noted(*given: Any, **_: Any) -> Any:
        asked.append(given)
        return noise

    monkeypatch.setattr("dpsweep.privacy.calibration.calibrate_sampling", noted)
    call("calibrate", "digits", "8", "3", batch, "--study", study_file)
    size = N - len(held_out_rows(N, 0.25))
    steps = {"full": 3, "100": 3 * -(-size // 100)}[batch]
    sampling = Sampling(size, size if batch == "full" else 100, steps)
    assert asked == [(8.0, 3e-6, sampling)]


def test_a_report_needs_the_whole_study(study_file: Path, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="the report needs outputs that are missing"):
        call("report", "--study", study_file)
    assert not (tmp_path / "results" / "report.html").exists()


def test_an_audit_with_a_refuted_claim_fails() -> None:
    import pandas as pd

    from dpsweep.figures import audit

    rows = [
        {"epsilon": epsilon, "curve_bound": bound, "consistent": bound <= epsilon}
        | {"noise_bound": 0.8 * epsilon, "curve_finds_0.5": 0.5, "noise_finds_0.5": 0.5}
        | {"batch_size": 64, "full_batch": False, "sampling_rate": 0.25, "steps": 4}
        | {"noise_multiplier": 1.0, "correct": 30, "guesses": 40}
        for epsilon, bound in ((1.0, 0.5), (2.0, 2.5))
    ]
    found = pd.DataFrame(rows)
    with pytest.raises(AuditFailedError, match=r"refutes 1 of 2 claims \(B = 64: claimed ε = 2"):
        check_audit(found)
    check_audit(found[:1])
    said = verdict(found[:1])
    assert said.startswith("The audit refutes none of 1 claims") and "at most 0.80 of it" in said
    assert [row[-1] for row in audit.show(found).rows] == ["stands", "REFUTED"]
