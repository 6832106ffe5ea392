"""`snakemake release`: the workflow makes one model, never again, and a kill leaves no part of it."""

import copy
import json
import os
import shutil
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from benchmarks.campaigns.campaign import left_in, processes
from tests.waiting import wait_for
from tests.workflow.chain import STUDY, Chain

from dpsweep.release import CARD, CERTIFICATE, FROZEN, TRAINED
from dpsweep.release.verify import verify

RELEASE: dict[str, Any] = {
    "sweep": "digits_vit_film",
    "selection": "private",
    "epsilon": 8.0,
    "epochs": [1],
    "batch_size": ["full"],
    "clipping_bound": [1.0],
    "learning_rate": [0.01, 0.03],
}
FILES = {f"release/{name}" for name in (CERTIFICATE, TRAINED, FROZEN, CARD)}


@pytest.mark.slow
def test_a_release_is_made_once(tmp_path: Path) -> None:
    chain = Chain(tmp_path, copy.deepcopy(STUDY) | {"release": RELEASE})
    said = chain.run("release")
    assert "differentially private" in said
    folder = chain.results / "release"
    made = {file: file.read_bytes() for file in folder.iterdir()}
    assert json.loads((folder / "certificate.json").read_text())["epsilon"] == 8
    assert not (chain.results / "trials").exists()
    assert not (chain.results / "cells").exists()

    # An edited section neither removes the model nor fits its certificate.
    chain.study["release"] = RELEASE | {"epsilon": 1.0}
    chain.write()
    said = chain.run("release", expect=1)
    assert "epsilon: found 8.0, expected 1.0" in said
    assert {file: file.read_bytes() for file in folder.iterdir()} == made
    chain.study["release"] = RELEASE
    chain.write()

    # An existing model does not need its data; a forced call does not train another model.
    shutil.rmtree(chain.results / "data")
    assert "differentially private" in chain.run("release", options=("--force",))
    assert {file: file.read_bytes() for file in folder.iterdir()} == made
    assert not (chain.results / "data").exists()

    (folder / "README.md").write_text("Trust me.")
    assert "README.md: is not the card of this certificate" in chain.run("release", expect=1)

    # After the model is moved away, another one is made.
    folder.rename(tmp_path / "elsewhere")
    assert "differentially private" in chain.run("release")
    assert (folder / TRAINED).read_bytes() != made[folder / TRAINED]
    assert len(verify(folder).releases.earlier) == 1


@pytest.mark.nightly
def test_a_killed_release_leaves_nothing(tmp_path: Path) -> None:
    """SIGKILL while it writes; then the same command."""
    chain = Chain(tmp_path, copy.deepcopy(STUDY) | {"release": RELEASE})
    chain.run("results/data/digits/metadata.json", "results/backbones/vit/metadata.json")
    before = files(chain.results)

    kill_when(chain, lambda: unfinished(chain, TRAINED))
    assert not files(chain.results / "release")
    (left,) = {file.split("/")[0] for file in files(chain.results) - before}
    assert left.startswith(".partial-release+")
    chain.run(options=("--unlock",))

    chain.run("release")
    assert files(chain.results) - before == FILES
    verify(chain.results / "release")


def files(folder: Path) -> set[str]:
    """Return all files except logs and the lock that a kill leaves."""
    found = (str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    others = ("logs/", ".release.lock")
    return {file for file in found if not file.startswith(others)}


def unfinished(chain: Chain, name: str) -> bool:
    return any(chain.results.glob(f".partial-release+*/release/{name}"))


def kill_when(chain: Chain, condition: Callable[[], bool]) -> None:
    """Start a release; kill all its processes when a condition holds."""
    run = chain.fork("release")
    try:
        wait_for(condition, "moment for the kill", run, every=0.002)
    finally:
        for process in processes(chain.folder):
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    assert not left_in(chain.folder)
