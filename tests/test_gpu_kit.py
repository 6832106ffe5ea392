"""The GPU kit runs to its end where only a few libraries are, goes on after a kill, and joins parts."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks.gpu.inputs import cut_into_parts, join_parts

ROOT = Path(__file__).parents[1]
# A machine without what only the workflow, the accountants or the tables need.
ABSENT = """
import importlib.machinery
absent = {"opacus", "snakemake", "prv_accountant", "dp_accounting", "datasets", "typer", "pandas"}
absent |= {"pyarrow", "scipy", "sklearn", "matplotlib", "seaborn"}
found = importlib.machinery.PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in absent else found(name, path, target)
importlib.machinery.PathFinder.find_spec = staticmethod(find_spec)
"""


def start(folder: Path) -> "subprocess.Popen[str]":
    (folder / "site").mkdir(exist_ok=True)
    (folder / "site" / "sitecustomize.py").write_text(ABSENT)
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu", str(folder / "inputs"), "--rehearse"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(folder / "site"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.slow
def test_the_kit_runs_to_its_end_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    results = tmp_path / "inputs" / "rehearsal"
    first = start(tmp_path)
    deadline = time.monotonic() + 600
    while not list(results.glob("*.json")):
        assert first.poll() is None, first.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.2)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    kept = {path: path.stat().st_mtime_ns for path in results.glob("*.json")}
    said, _ = start(tmp_path).communicate()
    assert "Everything is done." in said, said
    assert all(path.stat().st_mtime_ns == written for path, written in kept.items())
    pieces = {path.stem: json.loads(path.read_text()) for path in results.glob("*.json")}
    assert {"right_noise", "right_resume", "noise_cost", "cell"} <= pieces.keys()
    assert all("opacus" not in each["environment"]["versions"] for each in pieces.values())
    moved = pieces["right_resume"]["largest_relative_differences"]
    assert moved == {"twice": 0.0, "stopped": 0.0, "to the GPU": 0.0, "to the CPU": 0.0}


def test_parts_are_joined_when_all_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.gpu.inputs.PART_BYTES", 10)
    folder = tmp_path / "data" / "cifar100"
    folder.mkdir(parents=True)
    whole = folder / "train_inputs.npy"
    whole.write_bytes(content := bytes(range(25)))
    cut_into_parts(tmp_path)
    whole.unlink()
    last = tmp_path / "parts" / "data-cifar100-train_inputs.npy.2"
    late = last.rename(tmp_path / "late")
    join_parts(tmp_path)
    assert not whole.exists()
    late.rename(last)
    join_parts(tmp_path)
    assert whole.read_bytes() == content
    whole.unlink()
    last.write_bytes(b"other")
    with pytest.raises(SystemExit, match="checksum"):
        join_parts(tmp_path)
    assert not whole.exists()
