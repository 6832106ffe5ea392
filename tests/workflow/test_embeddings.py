"""The examples, from a file of embeddings to a released model that needs only NumPy."""

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xxhash
from safetensors.numpy import load_file
from tests.workflow.chain import ROOT
from typer.testing import CliRunner

from dpsweep.cli.main import app
from dpsweep.config.shares import is_within
from dpsweep.release.verify import verify
from dpsweep.study import load_study

EXAMPLES = [ROOT / "examples" / name for name in ("embeddings.py", "release.py")]


@pytest.mark.parametrize(
    "example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem
)
def test_an_example_is_short(example: Path) -> None:
    assert len(example.read_text(encoding="utf-8").splitlines()) <= 60


@pytest.mark.slow
def test_a_file_of_embeddings_becomes_a_verified_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_process = subprocess.run

    def run(command: list[str], **options: Any) -> "subprocess.CompletedProcess[str]":
        """Call commands without Snakemake in this process, which has imported their libraries."""
        if command[3:4] == ["run"] or command[0] != sys.executable:
            return run_process(command, **options)
        done = CliRunner().invoke(app, command[3:], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return subprocess.CompletedProcess(command, 0, done.stdout)

    sweep = "notes_embedding_head"
    fewer = {"epsilon": "[8]", "batch_size": "[full]", "clipping_bound": "[1]", "seeds": "1"}
    changes = [f"--set=sweeps.{sweep}.{key}={value}" for key, value in fewer.items()]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for example, file in zip(EXAMPLES, ("notes.npz", "notes.yaml"), strict=True):
        monkeypatch.setattr(sys, "argv", [str(example), file, *changes])
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "run", run)
            runpy.run_path(str(example), run_name="__main__")
    assert "with ε = 1 on its card: " in capsys.readouterr().out
    study = load_study(tmp_path / "notes.yaml")
    trials = pd.read_parquet(tmp_path / "results" / "notes" / "problems" / f"{sweep}.parquet")
    assert (trials["certified_epsilon"] <= 8).all() and set(trials["epsilon"]) == {8}
    assert (trials["trainable_parameters"] == 4 * 65).all()
    assert trials.loc[trials["best"], "accuracy"].min() > 0.8  # by chance 0.25
    folder = tmp_path / "results" / "notes" / "release"
    certificate = verify(folder)
    assert certificate.certified_epsilon <= certificate.epsilon == 2
    assert (certificate.network.kind, certificate.network.shape) == ("embedding", [64])
    # The model without torch: normalise each embedding, and multiply it by the weights.
    stored = np.load(tmp_path / "notes.npz")
    names = [f"{xxhash.xxh3_64_intdigest(row.tobytes()):016x}" for row in stored["embeddings"]]
    tested = np.array([is_within(0.2, 0, "test", name) for name in names])
    assert tested.sum() == study.datasets["notes"].test_size
    x = stored["embeddings"][tested].astype(np.float64)
    x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-5)
    model = load_file(folder / "model.safetensors")
    guesses = (x @ model["head.weight"].T + model["head.bias"]).argmax(axis=1)
    right = np.array(certificate.network.classes)[guesses] == stored["labels"][tested]
    assert right.mean() == pytest.approx(certificate.test_accuracy, abs=1.5 / len(x))
