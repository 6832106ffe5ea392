"""The GPU kit runs with few libraries, and continues after a kill."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.gpu import __main__ as kit_command
from benchmarks.gpu import pieces, right
from benchmarks.gpu.__main__ import run_all
from benchmarks.gpu.kit import Kit
from benchmarks.speed import step_cost
from benchmarks.speed.steps import REHEARSAL

from dpsweep.gradients import UnsupportedModelError, make_engine
from dpsweep.training.job import interruption, watched
from tests.training.pretended_gpu import CUDA, PretendedGpu
from tests.waiting import wait_for

ROOT = Path(__file__).parents[1]
FAR = float("inf")
# A machine without the libraries that only the workflow, the accountants or the tables need.
ABSENT = """
import importlib.machinery
absent = {"opacus", "snakemake", "prv_accountant", "dp_accounting", "datasets", "typer", "pandas"}
absent |= {"pyarrow", "scipy", "sklearn", "matplotlib", "seaborn"}
found = importlib.machinery.PathFinder.find_spec
def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in absent else found(name, path, target)
importlib.machinery.PathFinder.find_spec = staticmethod(find_spec)
"""


@pytest.fixture
def uncompiled() -> Iterator[None]:
    """Do not compile, as in a rehearsal; the tests of the engines do."""
    with torch.compiler.set_stance("force_eager"):
        yield


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


@pytest.mark.nightly
def test_the_kit_continues_after_a_kill_and_runs_to_its_end(tmp_path: Path) -> None:
    results = tmp_path / "inputs" / "rehearsal"
    first = start(tmp_path)
    wait_for(lambda: list(results.glob("*.json")), "result", first)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    kept = {path: path.stat().st_mtime_ns for path in results.glob("*.json")}
    said, _ = start(tmp_path).communicate()
    assert "Everything is done." in said, said
    assert all(path.stat().st_mtime_ns == written for path, written in kept.items())
    written = {path.stem: json.loads(path.read_text()) for path in results.glob("*.json")}
    assert {"right_noise", "right_resume", "noise_cost", "cell"} <= written.keys()
    assert all("opacus" not in each["environment"]["versions"] for each in written.values())
    moved = written["right_resume"]["largest_relative_differences"]
    assert moved == {"twice": 0.0, "stopped": 0.0, "to the GPU": 0.0, "to the CPU": 0.0}


@pytest.mark.slow
@pytest.mark.usefixtures("uncompiled")
def test_unsupported_engines_are_recorded_and_wrong_ones_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong:
        """An engine with slightly too long gradients."""

        def __init__(self, engine: Any) -> None:
            self._engine = engine

        def __getattr__(self, name: str) -> Any:
            return getattr(self._engine, name)

        def clipped_sum(self, *arguments: Any) -> Any:
            found = self._engine.clipped_sum(*arguments)
            torch._foreach_mul_(list(found.gradients.values()), 1.001)
            return found

    kit, spoilt = Kit(tmp_path, rehearse=True), set[str]()
    problem = right.network_problem(REHEARSAL[0])

    def make(name: str, model: Any, *arguments: Any, **settings: Any) -> Any:
        if name == "vmap" or (name in spoilt and settings.get("compile")):
            raise UnsupportedModelError("no rule for attention")
        engine = make_engine(name, model, *arguments, **settings)
        # The reference engine stays right.
        on_device = model is not problem.model and next(model.parameters()).dtype == torch.float32
        return Wrong(engine) if name in spoilt and on_device else engine

    monkeypatch.setattr(right, "make_engine", make)
    found = right.check_engines(kit, lambda: problem)
    assert found["failures"] == {"vmap, float32": "UnsupportedModelError: no rule for attention"}
    computed = {f"{name}, {each}" for name in ("auto", "loop") for each in ("float32", "bfloat16")}
    computed |= {"auto, float64", "expanded, float32", "bookkeeping, float32"}
    assert found["relative_errors"].keys() == found["engines"].keys() == computed
    assert found["engines"]["auto, float32"] == "expanded"
    spoilt |= {"loop", "auto"}
    with pytest.raises(right.WrongNumberError) as wrong:
        right.check_engines(kit, lambda: problem)
    for name in spoilt:
        printed = re.search(rf"{name}, float32: {{'sum': ([^,]+),", str(wrong.value))
        assert printed is not None
        # Rounding depends on the processor.
        assert float(printed[1]) == pytest.approx(0.001, rel=0.01)
    # The kit fails without an engine that every network needs.
    with pytest.raises(right.WrongNumberError, match="auto, bfloat16, compiled: not computed"):
        right.check_engines(kit, lambda: problem, compiled=True)


@pytest.mark.slow
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.filterwarnings("ignore:CUDA is not available")  # so bfloat16 is float32 there
def test_pieces_mix_no_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Pretended(Kit):
        device = CUDA

    for name in ("empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)
    for name in ("memory_allocated", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda: 0)
    monkeypatch.setattr("dpsweep.training.specification.resolve_precision", lambda *_: "bfloat16")
    # Opacus reads the memory of a real GPU.
    monkeypatch.setattr(step_cost, "find_spec", lambda name: None)
    import_module("timm")  # before the simulated GPU replaces classes that it imports
    kit = Pretended(tmp_path, rehearse=True)
    # A cell runs in a separate process, without the simulation. One network is enough for the others.
    left_out = ("cell", "compiled", "vit-tiny_all")
    chosen = [each for each in pieces.all_pieces(kit) if not each.name.endswith(left_out)]
    assert len(chosen) == 9
    with PretendedGpu().pretended():
        found = {each.name: each.run(kit) for each in chosen}
    assert not found["right_vit-tiny_film"]["failures"]
    assert [row["processes"] for row in found["processes"]["rows"]] == [1]
    for row in found["step_vit-tiny_film"]["rows"]:
        assert all("ratio" in each for each in row["contenders"].values()), row


def test_failed_pieces_run_last_in_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(kit: Kit) -> dict[str, Any]:
        raise ValueError("a wrong number")

    def crash(kit: Kit) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        return {}

    works = pieces.Piece("works", lambda kit: {"found": 1})
    kit = Kit(tmp_path, rehearse=True)
    monkeypatch.setattr(
        pieces, "all_pieces", lambda kit: [pieces.Piece("a", fail), pieces.Piece("b", crash)]
    )
    assert run_all(kit, tmp_path, [], FAR) == 2
    assert "ValueError: a wrong number" in (tmp_path / "a.failed").read_text()
    assert "exit status -9" in (tmp_path / "b.failed").read_text()
    better = [pieces.Piece("a", works.run), pieces.Piece("b", works.run), works]
    monkeypatch.setattr(pieces, "all_pieces", lambda kit: better)
    capfd.readouterr()
    assert run_all(kit, tmp_path, [], FAR) == 0
    assert capfd.readouterr().out.split("\n")[:3] == ["works: done", "a: done", "b: done"]
    assert not list(tmp_path.glob("*.failed"))


@pytest.mark.slow
def test_a_piece_that_runs_out_of_time_saves_its_state_without_failing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    @watched()
    def train(kit: Kit) -> dict[str, Any]:
        while not (stop := interruption(saved=True)):
            time.sleep(0.05)
        (tmp_path / "saved").touch()
        raise stop

    long = pieces.Piece("long", lambda kit: {}, least_seconds=600)
    listed = [pieces.Piece("trains", train), long, pieces.Piece("short", lambda kit: {})]
    monkeypatch.setattr(pieces, "all_pieces", lambda kit: listed)
    monkeypatch.setattr(kit_command, "PIECE_SECONDS", kit_command.SAVE_SECONDS + 4)
    kit = Kit(tmp_path, rehearse=True)
    assert run_all(kit, tmp_path, [], time.monotonic() + 590) == 2
    assert (tmp_path / "saved").exists()
    said = capfd.readouterr().out
    assert "trains: its time was over, call again" in said
    # A long piece does not begin; a short one does.
    assert "long: no time left, call again" in said
    assert {path.name for path in tmp_path.iterdir()} == {"saved", "short.json"}
