"""How people call the workflow: without an activated environment, from elsewhere, with --configfile."""

import os
import socket
import subprocess
from pathlib import Path

import psutil
import pytest
from benchmarks.common import snakemake
from tests.workflow.chain import ROOT, Workflow

STUDY = f"""\
extends: {ROOT}/studies/demo.yaml
results: results
privacy: {{check_with_opacus: false}}
figures: !replace {{}}
tables: !replace {{}}
"""


@pytest.mark.parametrize("how", ["--config", "--configfile"])
def test_a_study_is_found_and_so_are_the_commands(tmp_path: Path, noise: str, how: str) -> None:
    study = tmp_path / "mine.yaml"
    study.write_text(STUDY)
    named = {"--config": f"study={study}", "--configfile": str(study)}[how]
    done = subprocess.run(
        snakemake(tmp_path, how, named, "--", noise),
        cwd=tmp_path,
        env=os.environ | {"PATH": os.defpath},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / noise).exists()


HERE = socket.gethostname()
BEGAN = psutil.Process().create_time() - psutil.boot_time()


@pytest.mark.parametrize(
    ("call", "began", "refused"),
    [
        (None, 0.0, False),  # killed before it could say that it is there
        (f"{HERE} {2**22 + 1}", BEGAN, False),  # no process has such a number
        (f"{HERE} {os.getpid()}", BEGAN - 1, False),  # a new process with an old number
        (f"{HERE} {os.getpid()}", BEGAN, True),
        (f"other{HERE} 1", BEGAN, True),
    ],
    ids=["says nothing", "no process", "another process", "at work", "on another machine"],
)
def test_the_lock_of_a_call_that_was_killed_is_in_nobodys_way(
    tmp_path: Path, noise: str, call: str | None, began: float, refused: bool
) -> None:
    locks = tmp_path / ".snakemake" / "locks"
    locks.mkdir(parents=True)
    (locks / "0.output.lock").write_text(f"{noise}\n")
    if call is not None:
        (locks / f"{call}.call").write_text(f"{began:.1f}")
    said = Workflow(tmp_path).run(noise, expect=int(refused))
    assert ("cannot be locked" in said) == refused, said
    assert (tmp_path / noise).exists() != refused
