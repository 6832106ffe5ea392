"""Lost files, failures, kills and edits of a running study. test_golden.py has the regular calls."""

import contextlib
import os
import shutil
import signal
from pathlib import Path

import pandas as pd
import pytest
from tests.waiting import wait_for
from tests.workflow.chain import PATHS, STUDY, Chain

from dpsweep.planning.outputs import Outputs

pytestmark = pytest.mark.nightly

CELL = "eps8_epochs2_B128_C1"
SWEEP = "digits_vit_film"


def trials(chain: Chain, cell: str = CELL) -> pd.DataFrame:
    return pd.read_parquet(chain.folder / chain.cell_file(cell))


def test_missing_files_of_all_outputs_are_made_again(chain: Chain) -> None:
    """No trial is trained again, because cells are made from the store."""
    before, numbers, rows = chain.stored_trials(), chain.drawn_numbers(), trials(chain)
    outputs = Outputs(chain.parsed, PATHS).every()
    missing = [chain.folder / each.files[n % len(each.files)] for n, each in enumerate(outputs)]
    assert {"data", "backbones", "noise", "cells", "gradnorms", "theory", "figures", "tables"} <= {
        file.relative_to(chain.results).parts[0] for file in missing
    }
    for file in missing:
        file.unlink()
    chain.run()
    assert [file for file in missing if not file.exists()] == []
    assert (chain.stored_trials(), chain.drawn_numbers()) == (before, numbers)
    pd.testing.assert_frame_equal(trials(chain), rows)
    assert "Nothing to be done" in chain.run()


def test_failed_cells_are_reported_and_others_finish(chain: Chain) -> None:
    key = trials(chain)["trial_key"][0]
    store = chain.results / "trials" / key[:2]
    (store / f"{key}.safetensors").unlink()
    obstacle = store / f"{key}.checkpoint"
    obstacle.mkdir()
    other = "eps8_epochs2_Bfull_C1"
    for cell in (CELL, other):
        shutil.rmtree(chain.results / "cells" / SWEEP / cell)
    said = chain.run(expect=1)
    (log,) = (chain.results / "logs" / "cells" / SWEEP).glob(f"{CELL}-*.log")
    assert f"Is a directory: '{obstacle.relative_to(chain.folder)}'" in log.read_text()
    assert log.name in said
    assert "Traceback" not in log.read_text()
    assert len(trials(chain, other)) == 3
    obstacle.rmdir()
    chain.run()
    assert len(trials(chain)) == 3


def test_jobs_planned_before_an_edit_end_with_a_sentence(tmp_path: Path) -> None:
    chain = Chain(tmp_path, STUDY)
    run = chain.fork()
    cells = chain.results / "cells" / SWEEP
    try:
        wait_for(lambda: list(cells.glob("*/trials-*.parquet")), "cell", run)
        os.killpg(run.pid, signal.SIGSTOP)
        chain.study["sweeps"][SWEEP]["seeds"] = 3
        chain.write()
        os.killpg(run.pid, signal.SIGCONT)
        assert run.wait() == 1
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
    assert "changed after this job was planned" in chain.logs()
    assert "latency" not in chain.said
    chain.run()
    assert all(len(trials(chain, each.name)) == 4 for each in cells.iterdir())
