"""Lost files, failures, damage, kills and edits of a study. test_golden.py has the regular calls.

Notes beside results tell what is outdated, without records of Snakemake.
"""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from benchmarks.campaigns import kills
from benchmarks.campaigns.histories import run_history
from tests.waiting import called
from tests.workflow.chain import PATHS, STUDY, Chain

from dpsweep.base.files import read_json, write_json
from dpsweep.planning.outputs import Outputs

CELL = "eps8_epochs2_B128_C1"
SWEEP = "digits_vit_film"


def trials(chain: Chain) -> pd.DataFrame:
    return pd.read_parquet(chain.folder / chain.cell_file(CELL))


@pytest.mark.nightly
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


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_a_history_has_the_results_of_a_fresh_run(tmp_path: Path) -> None:
    assert run_history(tmp_path, seed=1)["wrong"] == []


@pytest.mark.nightly
def test_the_same_command_completes_killed_runs(tmp_path: Path) -> None:
    result = kills.history(tmp_path, seed=1)
    assert result["kills"]
    assert kills.is_good(result), result


# -- two clones with one results folder, and a lost .snakemake ---------------------------------------

PAGES = {"explore.html", "report.html"}
PROBLEM = {f"problems/{SWEEP}.parquet"}
DRAWN = {"figures/heatmap.pdf", "figures/norms.pdf", "figures/theory.pdf", "tables/grid.tex"}


def caption(study: dict[str, Any]) -> None:
    study["figures"]["heatmap"]["caption"] = "Other words."


def method(study: dict[str, Any]) -> None:
    study["methods"]["film"]["title"] = "Scales and shifts"


def role(study: dict[str, Any]) -> None:
    study["roles"]["backbones"]["strong"] = "vit"


def shorter_grid(study: dict[str, Any]) -> None:
    study["sweeps"][SWEEP]["clipping_bound"] = [1.0]


EDITS: dict[Callable[[dict[str, Any]], None], set[str]] = {
    caption: {"figures/heatmap.pdf", "report.html"},
    method: DRAWN | PAGES,
    role: PAGES,
    # A map needs two values on each axis.
    shorter_grid: (DRAWN | PAGES | PROBLEM) - {"figures/heatmap.pdf"},
}


def planned(clone: Chain) -> set[str]:
    """Return the first output of each job of a dry run."""
    said = clone.run("all", options=("--dry-run",))
    return set(re.findall(r"^ +output: results/([^,\s]+)", said, re.MULTILINE))


@pytest.fixture
def other(chain: Chain, tmp_path: Path) -> Chain:
    """Return another clone, without records of Snakemake, with the results of the chain."""
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "results").symlink_to(chain.results)
    return Chain(folder, copy.deepcopy(STUDY))


@pytest.mark.slow
def test_edits_are_noticed_without_records_of_snakemake(other: Chain) -> None:
    assert planned(other) == set()
    for edit, expected in EDITS.items():
        other.study = copy.deepcopy(STUDY)
        edit(other.study)
        other.write()
        assert planned(other) == expected, edit.__name__


@pytest.mark.slow
def test_an_edited_network_is_prepared_again_without_records(other: Chain) -> None:
    other.study["backbones"]["vit"]["std"] = [0.25]
    other.write()
    assert "backbones/vit/metadata.json" in planned(other)


@pytest.mark.slow
def test_what_one_clone_has_drawn_the_other_does_not_draw_again(chain: Chain, other: Chain) -> None:
    for edit in (caption, shorter_grid):
        for clone in (chain, other):
            edit(clone.study)
            clone.write()
        other.run()
        assert planned(chain) == set(), edit.__name__
    chain.study = copy.deepcopy(STUDY)  # back again
    chain.write()
    assert planned(chain) == DRAWN | PAGES | PROBLEM
