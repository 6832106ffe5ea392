"""The whole chain on the smallest study, through Snakemake, as a user runs it."""

import os
import re
import shutil
import signal
import subprocess
import sys
from base64 import urlsafe_b64decode
from pathlib import Path

import pandas as pd
import pytest
from tests.waiting import wait_for
from tests.workflow.chain import PATHS, STUDY, Chain

from dpsweep.planning.outputs import Outputs

pytestmark = pytest.mark.slow

CELL = "eps8_epochs2_B128_C1"
SWEEP = "digits_vit_film"


def trials(chain: Chain, cell: str = CELL) -> pd.DataFrame:
    return pd.read_parquet(chain.folder / chain.cell_file(cell))


def test_every_output_is_there(finished: Chain) -> None:
    for name in (
        "figures/heatmap.pdf",
        "figures/norms.png",
        "tables/grid.tex",
        "report.html",
        "explore.html",
    ):
        assert (finished.results / name).stat().st_size > 0, name


def test_second_run_does_nothing(finished: Chain) -> None:
    before = finished.stored_trials()
    assert "Nothing to be done" in finished.run()
    assert finished.stored_trials() == before


def test_a_plan_trains_nothing(chain: Chain) -> None:
    shutil.rmtree(chain.results / "cells" / SWEEP / CELL)
    said = chain.run("plan")
    assert "3 of 4 cells are done" in said
    assert re.search(rf"^{SWEEP} +1 +3 ", said, re.MULTILINE)
    assert not (chain.results / "cells" / SWEEP / CELL).exists()


def test_repeat_best_trains_the_grid_once_and_repeats_the_best(finished: Chain) -> None:
    rows = trials(finished)
    assert len(rows) == 3  # two learning rates with seed 1, the better one with seed 2
    first = rows[rows["seed"] == 1]
    best = first.loc[first["macro_accuracy"].idxmax(), "learning_rate"]
    assert rows[rows["seed"] == 2]["learning_rate"].tolist() == [best]
    assert rows[rows["best"]]["learning_rate"].unique().tolist() == [best]
    assert (rows["certified_epsilon"] <= 8).all()
    assert (rows["certified_epsilon"] >= 0.998 * 8).all()


def test_new_learning_rate_trains_only_what_is_new(chain: Chain) -> None:
    before = chain.stored_trials()
    chain.study["sweeps"][SWEEP]["learning_rate"] = [0.01, 0.02, 0.03]
    chain.write()
    chain.run(chain.cell_file(CELL), "results/tables/grid.md")
    assert "0.02" in (chain.results / "tables" / "grid.md").read_text()
    after = chain.stored_trials()
    assert {key: after[key] for key in before} == before  # nothing old was trained again
    rows = trials(chain)
    new = {key for key in after if key not in before}
    assert set(rows[rows["learning_rate"] == 0.02]["trial_key"]) <= new
    # The new rate, and its repeat if it is the best one now.
    repeated = bool(rows["best"][rows["learning_rate"] == 0.02].any())
    assert len(new) == chain.timing(CELL)["trained"] == (2 if repeated else 1)


def test_new_clipping_bound_leaves_other_cells_alone(chain: Chain) -> None:
    before = chain.stored_trials()
    chain.study["sweeps"][SWEEP]["clipping_bound"] = [0.1, 1.0, 10.0]
    chain.write()
    output = chain.run(options=("--dry-run",))
    assert "train 2" in " ".join(output.split())  # C = 10 at two batch sizes
    chain.run(chain.cell_file("eps8_epochs2_Bfull_C10"))
    after = chain.stored_trials()
    assert {key: after[key] for key in before} == before
    assert len(after) == len(before) + 3


def test_deleted_cell_is_rebuilt_without_training(chain: Chain) -> None:
    before, numbers, rows = chain.stored_trials(), chain.drawn_numbers(), trials(chain)
    shutil.rmtree(chain.results / "cells" / SWEEP / CELL)
    chain.run(chain.cell_file(CELL))
    assert chain.timing(CELL)["trained"] == 0
    assert chain.stored_trials() == before
    chain.run()  # what draws the cell is drawn again
    pd.testing.assert_frame_equal(trials(chain), rows)
    assert chain.drawn_numbers() == numbers


@pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
def test_a_file_that_is_missing_of_every_output_is_made_again(chain: Chain, which: int) -> None:
    before, numbers = chain.stored_trials(), chain.drawn_numbers()
    missing = [
        chain.folder / output.files[which] for output in Outputs(chain.parsed, PATHS).every()
    ]
    assert {"data", "backbones", "noise", "cells", "gradnorms", "theory", "figures", "tables"} <= {
        file.relative_to(chain.results).parts[0] for file in missing
    }
    for file in missing:
        file.unlink()
    chain.run()
    assert [file for file in missing if not file.exists()] == []
    assert (chain.stored_trials(), chain.drawn_numbers()) == (before, numbers)
    assert "Nothing to be done" in chain.run()


def test_norms_of_a_trial_that_kept_no_parameters(chain: Chain) -> None:
    norms = chain.folder / chain.norms_file(1.0)
    content, before = norms.read_bytes(), chain.stored_trials()
    norms.unlink()
    kept = list((chain.results / "trials").glob("*/*.parameters.safetensors"))
    assert len(kept) == 4  # one a cell
    for path in kept:
        path.unlink()
    chain.run(chain.norms_file(1.0))
    assert "training the trial again" in chain.logs()
    assert norms.read_bytes() == content
    assert chain.stored_trials() == before


def test_gradient_norms_that_nothing_draws_are_measured_again_where_their_cells_change(
    chain: Chain,
) -> None:
    norms = chain.norms_file(0.1)
    chain.run(norms)
    assert "Nothing to be done" in chain.run(norms)
    chain.study["sweeps"][SWEEP]["learning_rate"] = [0.01, 0.02, 0.03]
    chain.write()
    cells = (f"eps8_epochs2_B{size}_C0.1" for size in (128, "full"))
    chain.run(*(chain.cell_file(cell) for cell in cells))
    norms = chain.norms_file(0.1)
    would = chain.run(norms, options=("--dry-run", "--quiet"))
    assert "gradient_norms 1 total 1" in " ".join(would.split())


def test_theory_is_measured_again_where_its_section_changes_and_nothing_is_trained(
    chain: Chain,
) -> None:
    assert set(pd.read_parquet(chain.folder / chain.theory_file(CELL))["draw"]) == {1, 2, 3}
    before = chain.stored_trials()
    chain.study["theory"] = {"draws": 1, "largest_batch": 64}
    chain.write()
    chain.run("results/figures/theory.pdf")
    measured = pd.read_parquet(chain.folder / chain.theory_file(CELL))
    assert set(measured["draw"]) == {1}
    assert set(measured["examples"]) == {64}
    assert chain.stored_trials() == before
    drawn = pd.read_csv(chain.results / "figures" / "theory.csv")
    assert set(drawn["privacy"]) == {"not private"}


def test_a_cell_of_twelve_trials_leaves_twenty_files(finished: Chain) -> None:
    results = finished.results
    cells = len(list((results / "cells").glob("*/*")))
    files = [
        path
        for folder in ("cells", "trials", "logs/cells")
        for path in (results / folder).rglob("*")
        if path.is_file()
    ]
    records = [
        path
        for path in (finished.folder / ".snakemake/metadata").iterdir()
        if urlsafe_b64decode(path.name).startswith(b"results/cells/")
    ]
    trials = len(finished.stored_trials())
    assert trials == 3 * cells == 12
    assert len(files) + len(records) <= trials + (20 - 12) * cells


def test_damaged_trial_is_set_aside_and_trained_again(chain: Chain) -> None:
    rows = trials(chain)
    key = rows["trial_key"][0]
    stored = chain.results / "trials" / key[:2] / f"{key}.safetensors"
    content = bytearray(stored.read_bytes())
    content[-3] ^= 1
    stored.write_bytes(content)
    shutil.rmtree(chain.results / "cells" / SWEEP / CELL)
    chain.run(chain.cell_file(CELL))
    assert stored.with_name(stored.name + ".damaged").read_bytes() == bytes(content)
    assert "checksum does not match" in chain.logs()
    assert chain.timing(CELL)["trained"] == 1
    measured = [column for column in rows if "second" not in column]
    pd.testing.assert_frame_equal(trials(chain)[measured], rows[measured])


def test_diverged_trial_is_a_result(chain: Chain) -> None:
    chain.study["sweeps"][SWEEP]["learning_rate"] = [0.01, 0.03, 1e30]
    chain.write()
    chain.run(chain.cell_file(CELL))
    rows = trials(chain).set_index("learning_rate")
    assert rows.loc[1e30, "diverged"]
    assert not rows.loc[1e30, "best"]
    assert 0 <= rows.loc[1e30, "macro_accuracy"] <= 0.2
    assert not rows.loc[0.01, "diverged"].any()


def test_failed_cells_leave_the_others_and_say_why(chain: Chain) -> None:
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
    assert "Nothing to be done" in chain.run()


def test_what_is_there_is_drawn_while_a_study_runs(tmp_path: Path) -> None:
    chain = Chain(tmp_path, STUDY)
    cells = chain.results / "cells" / SWEEP
    run = chain.fork()
    try:
        wait_for(lambda: list(cells.glob("*/trials-*.parquet")), "cell", run)
        os.killpg(run.pid, signal.SIGSTOP)  # it holds its lock, and trains nothing more
        before = chain.stored_trials()
        command = [sys.executable, "-m", "dpsweep.cli", "report", "--partial"]
        drawn = subprocess.run(
            command,
            cwd=chain.folder,
            env=chain.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert f"Report: {chain.results / 'partial' / 'report.html'}" in drawn.stdout
        report = (chain.results / "partial" / "report.html").read_text()
        assert "Partial results of an unfinished study" in report
        assert "of 4 planned cells" in report
        numbers = pd.read_csv(chain.results / "partial" / "figures" / "heatmap.csv")
        assert 1 <= len(numbers) == len(list(cells.glob("*/trials-*.parquet"))) < 4
        assert (chain.results / "partial" / "explore.html").exists()
        assert chain.stored_trials() == before
        assert not (chain.results / "report.html").exists()
    finally:
        os.killpg(run.pid, signal.SIGKILL)
        run.wait()


def test_killed_runs_continue_and_end_the_same(finished: Chain, tmp_path: Path) -> None:
    chain = Chain(tmp_path, STUDY)
    survived: dict[str, int] = {}
    for after_trials in (1, 6):
        run = chain.fork()
        try:
            wait_for(lambda: len(chain.stored_trials()) >= after_trials, "trial", run)  # noqa: B023
        finally:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
        before, survived = survived, chain.stored_trials()
        assert survived | before == survived  # nothing was trained twice
        assert "--unlock" in chain.run(expect=1)  # Snakemake says what to type
        chain.run(options=("--unlock",))
        assert after_trials <= len(survived) < len(finished.stored_trials())
    chain.run()
    after = chain.stored_trials()
    assert after | survived == after
    assert set(after) == set(finished.stored_trials())
    assert chain.drawn_numbers() == finished.drawn_numbers()
