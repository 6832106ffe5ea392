"""`snakemake audit` writes its evidence, and fails for a refuted claim."""

import copy
import csv
import json
from pathlib import Path

import pytest
from tests.planning.finished import AUDIT
from tests.workflow.chain import STUDY, Chain

from dpsweep.analysis.audit import AuditFailedError
from dpsweep.cli.main import app


@pytest.mark.slow
def test_a_refuted_claim_fails_after_its_evidence_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = {"epsilon": [1.0, 8.0], "batch_size": ["full"], "canaries": 200, "guesses": 60}
    study = copy.deepcopy(STUDY) | {"audit": AUDIT | audit}
    chain = Chain(tmp_path, study)
    assert "refutes none of 2 claims" in chain.run("audit")
    folder = chain.results / "audit"
    written = {path.suffix for path in folder.glob("audit.*")}
    assert written == {".csv", ".pdf", ".png", ".tex", ".md"}
    loose = json.loads((folder / "eps8_epochs2_Bfull_C1.json").read_text())
    assert loose["consistent"] and loose["curve"]["lower_bound"] > 1
    assert loose["calibration"]["train_size"] == loose["calibration"]["batch_size"] == 1547

    # The lower bound found at epsilon 8 would refute a claim of epsilon 1.
    tight = folder / "eps1_epochs2_Bfull_C1.json"
    measured = {"curve": loose["curve"]}
    tight.write_text(json.dumps(json.loads(tight.read_text()) | measured | {"consistent": False}))
    # The commands of the rules, because the workflow would notice the edit and audit again.
    monkeypatch.chdir(tmp_path)
    app(["audit-evidence", "--study", "study.yaml"], standalone_mode=False)
    with pytest.raises(AuditFailedError, match="refutes 1 of 2 claims"):
        app(["audit", "--study", "study.yaml"], standalone_mode=False)
    rows = list(csv.DictReader((folder / "audit.csv").open()))
    assert [row["consistent"] for row in rows] == ["False", "True"]
    assert "REFUTED" in (folder / "audit.md").read_text()
