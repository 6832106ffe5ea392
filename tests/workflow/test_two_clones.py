"""Two clones with one results folder, and a lost `.snakemake`: notes beside results tell what is outdated."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.workflow.chain import STUDY, Chain

pytestmark = pytest.mark.slow

SWEEP = "digits_vit_film"
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


def test_edits_are_noticed_without_records_of_snakemake(other: Chain) -> None:
    assert planned(other) == set()
    for edit, expected in EDITS.items():
        other.study = copy.deepcopy(STUDY)
        edit(other.study)
        other.write()
        assert planned(other) == expected, edit.__name__


def test_an_edited_network_is_prepared_again_without_records(other: Chain) -> None:
    other.study["backbones"]["vit"]["std"] = [0.25]
    other.write()
    assert "backbones/vit/metadata.json" in planned(other)


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
