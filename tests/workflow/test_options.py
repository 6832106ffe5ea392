"""Options of Snakemake do what its documentation says."""

import re
import shutil

import pytest
from tests.workflow.chain import Chain

pytestmark = pytest.mark.slow


def planned(said: str) -> dict[str, int]:
    """How many jobs of each rule a dry run counts."""
    found = re.findall(r"^ *(\w[\w ]*?) +(\d+) *$", said, re.MULTILINE)
    return {rule.replace(" ", "_"): int(count) for rule, count in found if rule != "total"}


def dry(chain: Chain, *options: str) -> dict[str, int]:
    return planned(chain.run(options=(*options, "--dry-run", "--quiet", "rules")))


@pytest.mark.parametrize("option", ["--dag", "--rulegraph", "--filegraph"])
def test_graphs_name_every_stage(finished: Chain, option: str) -> None:
    graph = finished.run(options=(option,))
    assert "digraph" in graph
    for rule in ("prepare_dataset", "calibrate", "train", "aggregate", "figure", "report"):
        assert rule in graph


def test_rules_are_listed(finished: Chain) -> None:
    rules = finished.run(options=("--list-rules",)).split()
    assert {"all", "train", "gradient_norms", "figure", "check_cluster"} <= set(rules)


def test_the_summary_has_a_line_for_each_file(finished: Chain) -> None:
    lines = finished.run(options=("--summary",)).splitlines()
    trials = [line for line in lines if "/trials-" in line]
    assert len(trials) == 4
    assert all(line.endswith("no update") for line in trials)


def test_the_report_of_snakemake_counts_its_jobs(finished: Chain) -> None:
    finished.run(options=("--report", "snakemake.zip"))
    assert (finished.folder / "snakemake.zip").stat().st_size > 0


def test_until_and_omit_from_end_before_the_figures(chain: Chain) -> None:
    shutil.rmtree(chain.results)
    until = dry(chain, "--until", "calibrate")
    assert set(until) == {"calibrate"}
    omitted = dry(chain, "--omit-from", "aggregate")
    assert omitted["train"] == 4
    assert not {"aggregate", "explore", "report"} & omitted.keys()


def test_a_forced_rule_runs_with_all_that_depends_on_it(chain: Chain) -> None:
    forced = dry(chain, "--forcerun", "aggregate")
    assert {"aggregate", "explore", "report"} <= forced.keys()
    assert not {"train", "calibrate"} & forced.keys()


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
    assert dry(chain)["figure"] == 1
    drawn = (chain.results / "figures" / "heatmap.png").read_bytes()
    chain.run(options=("--touch",))
    assert "Nothing to be done" in chain.run()
    assert (chain.results / "figures" / "heatmap.png").read_bytes() == drawn
