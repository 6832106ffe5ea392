"""How people call the workflow: without an activated environment, and from elsewhere."""

import os
import subprocess
from pathlib import Path

from benchmarks.common import snakemake
from tests.workflow.chain import ROOT

from dpsweep.study import load_study
from dpsweep.study.paths import Paths

STUDY = f"""\
extends: {ROOT}/studies/demo.yaml
results: results
privacy: {{check_with_opacus: false}}
figures: !replace {{}}
tables: !replace {{}}
"""


def test_a_study_is_found_and_so_are_the_commands(tmp_path: Path) -> None:
    study = tmp_path / "mine.yaml"
    study.write_text(STUDY)
    noise = str(Paths(Path("results")).noise(load_study(study), "digits", 8.0, 4, 64))
    done = subprocess.run(
        snakemake(tmp_path, "--config", f"study={study}", "--", noise),
        cwd=tmp_path,
        env=os.environ | {"PATH": os.defpath},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / noise).exists()


def test_everything_is_made_where_no_target_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(STUDY)

    done = subprocess.run(
        snakemake(tmp_path, "-n", "--quiet", "rules", "--config", "study=mine.yaml"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert {"train", "explore", "report"} <= set(done.stdout.split())
