"""Options of Snakemake do what its documentation says."""

import shutil

import pytest
from tests.workflow.chain import Chain

pytestmark = pytest.mark.slow


def test_graph_list_summary_and_report_name_every_stage(finished: Chain) -> None:
    graph, rules = (finished.run(options=(each,)) for each in ("--rulegraph", "--list-rules"))
    for rule in ("prepare_dataset", "calibrate", "train", "aggregate", "figure", "report"):
        assert rule in graph and rule in rules
    trials = [
        each for each in finished.run(options=("--summary",)).splitlines() if "/trials-" in each
    ]
    assert len(trials) == 4
    assert all(line.endswith("no update") for line in trials)
    finished.run(options=("--report", "snakemake.zip"))
    assert (finished.folder / "snakemake.zip").stat().st_size > 0


def test_batches_of_a_rule_share_its_jobs(chain: Chain) -> None:
    trained = chain.stored_trials()
    shutil.rmtree(chain.results / "cells")
    shutil.rmtree(chain.results / "problems")
    for batch in (1, 2):
        chain.run(options=("--batch", f"aggregate={batch}/2"))
    assert "Nothing to be done" in chain.run()
    assert chain.stored_trials() == trained


def test_touch_makes_what_is_there_current(chain: Chain) -> None:
    chain.study["figures"]["heatmap"]["caption"] = "Other words."
    chain.write()
    would = chain.run(options=("--dry-run", "--quiet", "rules"))
    assert "figure 1" in " ".join(would.split())
    drawn = (chain.results / "figures" / "heatmap.png").read_bytes()
    chain.run(options=("--touch",))
    assert "Nothing to be done" in chain.run()
    assert (chain.results / "figures" / "heatmap.png").read_bytes() == drawn
