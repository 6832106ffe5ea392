"""A plan counts the jobs that Snakemake would run after an edit."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.planning.finished import finish_all
from tests.workflow.tiny import STUDY, SWEEP, TinyChain

from dpsweep.planning.plan import Plan
from dpsweep.study.paths import Paths

pytestmark = pytest.mark.slow

# Edits of the sweep, and of other sections.
EDITS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"clipping_bound": [1.0, 10.0]}, {"privacy": {"delta": 1e-4}}),
    ({"seeds": 3}, {"theory": {"draws": 2}}),
]


@pytest.mark.parametrize(("sweep", "sections"), EDITS, ids=str)
def test_a_plan_counts_the_jobs_that_would_run(
    tmp_path: Path, sweep: dict[str, Any], sections: dict[str, Any]
) -> None:
    chain = TinyChain(tmp_path, STUDY)
    paths = Paths(tmp_path / "results")
    finish_all(chain.parsed, paths)
    chain.study["sweeps"][SWEEP] |= sweep
    chain.study |= sections
    chain.write()
    would = Counter[str]()
    said = chain.run(options=("--dry-run",))
    for rule, count in re.findall(r"^(\w[\w.-]*) +(\d+)$", said, re.MULTILINE):
        would[rule] = max(would[rule], int(count))
    estimates = Plan(chain.parsed, paths).estimates()
    cells = sum(estimate.cells for estimate in estimates.values())
    assert cells == would["train"]
    for title, rule in (("gradient norms", "gradient_norms"), ("theory", "theory")):
        found = [name for name in estimates if name.startswith(title)]
        assert found == [f"{title} ({would[rule]})"] * bool(would[rule])
