"""Training jobs take turns on the GPUs of a workstation. The GPUs are simulated."""

import contextlib
import os
import re
from pathlib import Path

import pytest
from tests.workflow.tiny import SWEEP, TinyChain
from typer.testing import CliRunner

from dpsweep.cli.main import app

pytestmark = pytest.mark.slow

LISTED = "0, GPU-00, H100, 1000\n1, GPU-10, H100, 1000\n"


@pytest.fixture
def chain(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> TinyChain:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "nvidia-smi").write_text(f"#!/bin/sh\ncat <<END\n{LISTED}END\n")
    (programs / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    # The folder of the locks, and of a socket, whose path must not exceed 107 bytes.
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("locks")))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return TinyChain(tmp_path / "study")


def test_training_jobs_take_turns_on_the_gpus(chain: TinyChain) -> None:
    with contextlib.chdir(chain.folder):
        said = CliRunner().invoke(app, ["plan", "study.yaml"]).output
    assert "2 GPUs on this machine (2 x H100, 1 GB)." in said
    cells = [f"eps8_epochs2_B{size}_C1" for size in ("32", "full")]
    chain.run(*(chain.cell_file(cell, SWEEP) for cell in cells))
    logs = chain.results / "logs"
    taken = [next((logs / "cells" / SWEEP).glob(f"{cell}-*.log")).read_text() for cell in cells]
    assert all(re.search(r"on GPU [01] \(H100\)", log) for log in taken)
    # A job's log notes that this torch has no GPU.
    assert all("cannot use GPU" in log for log in taken)
    others = [log for log in logs.rglob("*.log") if "cells" not in log.parts]
    assert others
    assert not any("on GPU" in log.read_text() for log in others)
