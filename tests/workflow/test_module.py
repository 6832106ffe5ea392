"""Another Snakemake workflow uses this one as a module, as in docs/your-own-data.md."""

import os
import re
import sys
from pathlib import Path

import pytest
from tests.waiting import called
from tests.workflow.tiny import SWEEP, TinyChain

PAGE = Path(__file__).parents[2] / "docs" / "your-own-data.md"


@pytest.mark.slow
def test_another_workflow_uses_this_one_as_a_module(tmp_path: Path) -> None:
    chain = TinyChain(tmp_path)
    chain.study["sweeps"][SWEEP] |= {"batch_size": [32], "learning_rate": [0.01], "seeds": 1}
    chain.write()
    (block,) = re.findall(r"```python\n(.*?module dpsweep.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "Snakefile").write_text(block.replace("pets.yaml", "study.yaml"))
    (tmp_path / "heading.txt").write_text("ours")

    command = [sys.executable, "-m", "snakemake", "--cores", "2", "--quiet", "progress"]
    called(command, tmp_path, chain.environment)
    assert (tmp_path / "summary.txt").read_text() == "ours\npets_vit_film\n"

    # Changed inputs of the other workflow's rules trigger only these rules.
    (tmp_path / "heading.txt").write_text("newer")
    table = chain.results / "problems" / "pets_vit_film.parquet"
    made = table.stat().st_mtime_ns
    os.utime(chain.results / "data" / "pets" / "metadata.json", (2e9, 2e9))
    called(command, tmp_path, chain.environment)
    assert (tmp_path / "summary.txt").read_text() == "newer\npets_vit_film\n"
    assert table.stat().st_mtime_ns == made
