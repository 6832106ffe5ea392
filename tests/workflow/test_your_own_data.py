"""The studies of docs/your-own-data.md are valid, and get the figures that the page lists."""

import re
import shutil
from pathlib import Path

import pytest
from tests.workflow.chain import ROOT

from dpsweep.study import Study, load_study

TEXT = (ROOT / "docs" / "your-own-data.md").read_text(encoding="utf-8")
STUDIES = {
    name: f"# {name}\n{rest}"
    for name, rest in re.findall(
        r"^```yaml\n# (studies/\S+)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE
    )
}


def example(name: str, folder: Path) -> Study:
    """Return a study of the page, in its own folder."""
    (folder / "studies").mkdir(parents=True)
    shutil.copy(ROOT / "config.yaml", folder)
    shutil.copy(ROOT / "studies" / "paper-accuracies.csv", folder / "studies")
    for each, block in STUDIES.items():
        (folder / each).write_text(block)
    return load_study(folder / name)


@pytest.mark.parametrize("name", STUDIES)
def test_the_page_lists_the_figures_of_an_example(name: str, tmp_path: Path) -> None:
    assert len(STUDIES[name].splitlines()) < 20 + 1  # the first line is the file's name
    study = example(name, tmp_path)
    page = TEXT[TEXT.index(f"# {name}") :]
    figures, tables, report, named = re.search(  # type: ignore[union-attr]
        r"\*Result:\* (\d+) figures and (\d+) tables in `(\S+)`, among them (.*?)\.\n", page
    ).groups()
    assert (int(figures), int(tables)) == (len(study.figures), len(study.tables))
    assert report == f"{study.results}/report.html"
    assert set(re.findall("`(.*?)`", named)) <= set(study.figures)
