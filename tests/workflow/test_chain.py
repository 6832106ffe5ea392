"""Lost files, failures, damage, kills and edits of a study. test_golden.py has the regular calls."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
from benchmarks.campaigns import kills
from benchmarks.campaigns.histories import run_history
from tests.waiting import called
from tests.workflow.chain import PATHS, Chain

from dpsweep.base.files import read_json, write_json
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


def test_the_suggested_command_mends_damaged_noise(chain: Chain) -> None:
    (file,) = chain.results.glob("noise/digits/eps8_epochs2_B128-*.json")
    content = read_json(file)
    write_json(file, content | {"noise_multiplier": content["noise_multiplier"] / 2})
    train = f"dpsweep train --study study.yaml {SWEEP} {CELL}"

    def shell(command: str, status: int) -> str:
        return called(["sh", "-c", command], chain.folder, chain.environment, status).stderr

    message, _, suggested = shell(train, 1).partition("To make it again:\n")
    assert file.name in message
    shell(suggested, 0)
    assert read_json(file) == content
    shell(train, 0)


def test_a_history_has_the_results_of_a_fresh_run(tmp_path: Path) -> None:
    assert run_history(tmp_path, seed=1)["wrong"] == []


def test_the_same_command_completes_killed_runs(tmp_path: Path) -> None:
    result = kills.history(tmp_path, seed=1)
    assert result["kills"]
    assert kills.is_good(result), result
