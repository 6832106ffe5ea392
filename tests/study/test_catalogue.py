"""docs/figures.md lists every target of the paper's study as it is configured."""

import re
from pathlib import Path

from dpsweep.study import Study
from dpsweep.study.catalogue import catalogue

PAGE = Path(__file__).parents[2] / "docs" / "figures.md"


def test_the_page_is_current(paper: Study) -> None:
    assert PAGE.read_text(encoding="utf-8") == catalogue(paper), (
        "run: python -m dpsweep.study.catalogue > docs/figures.md"
    )


def test_every_target_has_its_command_and_one_sentence(paper: Study) -> None:
    rows = re.findall(
        r"^\| \*\*(\S+)\*\*<br>`snakemake (\S+)` \| (.+) \| ([\d,]+) \|$", catalogue(paper), re.M
    )
    assert [name for name, *_ in rows if name in paper.figures] == list(paper.figures)
    assert {name for name, *_ in rows} == {*paper.figures, *paper.tables}
    for name, file, sentence, _ in rows:
        kind, suffix = ("figures", "pdf") if name in paper.figures else ("tables", "md")
        assert file == f"results/{kind}/{name}.{suffix}"
        assert len(sentence) > 20
        assert sentence.endswith(".")
        assert "|" not in sentence
