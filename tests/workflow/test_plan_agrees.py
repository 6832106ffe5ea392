"""What a plan counts is what Snakemake would run, whatever was edited."""

import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.planning.finished import finish_all
from tests.workflow.tiny import STUDY, SWEEP, TinyChain

from dpsweep.planning.plan import Plan
from dpsweep.study.paths import Paths

pytestmark = pytest.mark.slow

Edit = Callable[[dict[str, Any]], None]
EDITS: dict[str, Edit] = {
    "seeds": lambda study: study["sweeps"][SWEEP].update(seeds=3),
    "axis": lambda study: study["sweeps"][SWEEP].update(clipping_bound=[1.0, 10.0]),
    "delta": lambda study: study["privacy"].update(delta=1e-4),
    "draws": lambda study: study.update(theory={"draws": 2}),
}


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_counts_what_would_run(tmp_path: Path, seed: int) -> None:
    chain = TinyChain(tmp_path, STUDY)
    paths = Paths(tmp_path / "results")
    finish_all(chain.parsed, paths)
    draw = random.Random(seed)
    for name in draw.sample(list(EDITS), draw.randint(0, 2)):
        EDITS[name](chain.study)
    chain.write()
    would = Counter[str]()
    said = chain.run(options=("--dry-run",))
    for rule, count in re.findall(r"^(\w[\w.-]*) +(\d+)$", said, re.MULTILINE):
        would[rule] = max(would[rule], int(count))
    estimates = Plan(chain.parsed, paths).estimates()
    cells = sum(estimate.cells for estimate in estimates.values())
    assert cells == would["train"]
    norms = [name for name in estimates if name.startswith("gradient norms")]
    measured = would["gradient_norms"]
    assert norms == ([f"gradient norms ({measured})"] if measured else [])
    theory = [name for name in estimates if name.startswith("theory")]
    measured = would["theory"]
    assert theory == ([f"theory ({measured})"] if measured else [])
