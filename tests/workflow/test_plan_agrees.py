"""What a plan counts is what Snakemake would run, whatever was edited or lost."""

import random
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.planning.finished import finish_all
from tests.workflow.tiny import STUDY, SWEEP, TinyChain

from dpsweep.planning.outputs import Outputs
from dpsweep.planning.plan import Plan
from dpsweep.study.paths import Paths

pytestmark = pytest.mark.slow

Edit = Callable[[dict[str, Any]], None]
EDITS: dict[str, Edit] = {
    "seeds": lambda study: study["sweeps"][SWEEP].update(seeds=3),
    "axis": lambda study: study["sweeps"][SWEEP].update(clipping_bound=[1.0, 10.0]),
    "train_share": lambda study: study["backbones"]["vit"]["weights"].update(train_share=0.5),
    "source": lambda study: study["datasets"]["pets"].update(title="Animals"),
    "delta": lambda study: study["privacy"].update(delta=1e-4),
    "draws": lambda study: study.update(theory={"draws": 2}),
    "caption": lambda study: study["figures"]["heatmap"].update(caption="Other words."),
}


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_counts_what_would_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chain = TinyChain(tmp_path, STUDY)
    monkeypatch.chdir(tmp_path)
    paths = Paths(Path("results"))
    finish_all(chain.parsed, paths)
    draw = random.Random(seed)
    for name in draw.sample(list(EDITS), draw.randint(0, 2)):
        EDITS[name](chain.study)
    chain.write()
    outputs = list(Outputs(chain.parsed, paths).every())
    for output in draw.sample(outputs, draw.randint(0, 2)):
        output.files[0].unlink(missing_ok=True)
    if draw.random() < 0.5:
        shutil.rmtree(paths.results / "cells", ignore_errors=True)
    would = Counter[str]()
    said = chain.run(options=("--dry-run", "--quiet", "--logger", "dpsweep"))
    for rule, count in re.findall(r"^(\w[\w.-]*) +(\d+)$", said, re.MULTILINE):
        would[rule] = max(would[rule], int(count))
    estimates = Plan(chain.parsed, paths).estimates()
    cells = sum(estimate.cells for estimate in estimates.values())
    assert cells == sum(count for rule, count in would.items() if rule.startswith("train_"))
    norms = [name for name in estimates if name.startswith("gradient norms")]
    measured = sum(count for rule, count in would.items() if rule.startswith("gradient_norms_"))
    assert norms == ([f"gradient norms ({measured})"] if measured else [])
    theory = [name for name in estimates if name.startswith("theory")]
    measured = sum(count for rule, count in would.items() if rule.startswith("theory_"))
    assert theory == ([f"theory ({measured})"] if measured else [])
