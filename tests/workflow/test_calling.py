"""How people call the workflow: without an activated environment, from elsewhere, with --configfile."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOISE = "results/noise/digits/eps8_epochs8_B64.json"


@pytest.mark.parametrize("how", ["--config", "--configfile"])
def test_a_study_is_found_and_so_are_the_commands(tmp_path: Path, how: str) -> None:
    study = tmp_path / "mine.yaml"
    study.write_text(
        f"extends: {ROOT}/studies/demo.yaml\nresults: results\ntables: !replace {{}}\n"
    )
    named = {"--config": f"study={study}", "--configfile": str(study)}[how]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile")),
            *("--directory", str(tmp_path), "--workflow-profile", "none", "--cores", "1"),
            *("--scheduler", "greedy", how, named, "--", NOISE),
        ],
        cwd=tmp_path,
        env=os.environ | {"PATH": os.defpath},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / NOISE).exists()
