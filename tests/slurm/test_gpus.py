"""One trial on two GPUs of a job of Slurm: the job's GPUs, CPUs, signals, processes and results."""

import copy
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.slurm import cluster
from tests.slurm.site import Site
from tests.slurm.test_slurm import LIMITED, LONG, LongCells, continued, ten_cells
from tests.waiting import PATIENCE, wait_for
from tests.workflow.chain import Chain

pytestmark = pytest.mark.nightly
if "DPSWEEP_TEST_SLURM" not in os.environ:
    pytest.skip("takes a cluster: make test-slurm", allow_module_level=True)

TARGET = f"results/problems/{LONG}.parquet"


def one_cell(gpus: int) -> dict[str, Any]:
    study = copy.deepcopy(ten_cells())
    study["sweeps"] = {LONG: study["sweeps"][LONG] | {"clipping_bound": [0.1]}}
    study["training"]["gpus"] = gpus
    return study


def ended(cells: LongCells) -> bool:
    return not any(process.is_running() for process in cells.processes[LIMITED])


def test_two_processes_of_a_job_survive_its_limit_and_a_cancellation(
    slurm: None, tmp_path: Path
) -> None:
    (tmp_path / "local").mkdir()
    local = Chain(tmp_path / "local", one_cell(gpus=1))
    local.run(TARGET, options=("--until", "calibrate", "prepare_dataset", "prepare_backbone"))
    site = Site(tmp_path / "clone", one_cell(gpus=2), local.results)
    run = site.start("--", TARGET)
    cells = LongCells(site, run)
    try:
        cells.suspend(LIMITED)
        (number,) = cells.starts(LIMITED)
        assert cluster.job(number)["NumCPUs"] == "2"
        assert sum(map(int, re.findall(r":(\d+)(?:[,(]|$)", cluster.gpus_of(number)))) == 2
        commands = [" ".join(process.cmdline()) for process in cells.processes[LIMITED]]
        assert sum("spawn_main" in command for command in commands) == 2
        cells.meet_limit(LIMITED)
        wait_for(lambda: ended(cells), "end of the processes at the limit", run)
        cells.suspend(LIMITED, start=2)
        subprocess.run(["scancel", number], check=True)
        cells.resume(LIMITED)
        wait_for(lambda: ended(cells), "end of the cancelled processes", run)
        assert run.wait(timeout=PATIENCE) == 0, site.said
    except AssertionError as error:
        error.add_note(site.evidence())
        raise
    finally:
        if run.poll() is None:
            run.kill()
    jobs = cells.starts(LIMITED)
    assert [job == number for job in jobs] == [True, True, False]
    assert continued(site, jobs) == 2
    assert site.journal_text().count("stopped by SIGUSR1, exit status 75") == 1

    local.run(TARGET)
    (found,), (expected,) = (
        pd.read_parquet(chain.results / f"problems/{LONG}.parquet").to_dict("records")
        for chain in (site, local)
    )
    assert (found["trial_key"], found["steps"]) == (expected["trial_key"], expected["steps"])
    numbers = [name for name, value in expected.items() if isinstance(value, float)]
    measured = [name for name in numbers if "second" not in name]
    assert {name: found[name] for name in measured} == pytest.approx(
        {name: expected[name] for name in measured}, rel=1e-5
    )
