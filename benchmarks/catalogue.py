"""Write a page with all figures and tables of a study: caption, number of cells.

python -m benchmarks.catalogue > docs/figures.md
"""

import re
import sys
from pathlib import Path

from benchmarks.common import command_line
from dpsweep.study.file import Study
from dpsweep.study.load import load_study

_HEADER = """\
# Figures and tables

`python -m benchmarks.catalogue > docs/figures.md` makes this page from `config.yaml`; do not edit it.

Ask for any of them by name: `snakemake fig1_accuracy_heatmaps`. Snakemake trains the cells that it shows
and that do not exist yet. `-n` lists them; `snakemake plan --config targets=<name>` estimates their cost. The
demo draws the same figures: `snakemake --profile demo results/demo/figures/<name>.pdf`.

A figure is written as `results/figures/<name>.pdf`, `.png` (300 dpi) and `.csv` with its numbers; a table as
`tex`, `md` and `csv` in `results/tables`. The report has the full captions. Targets that show the same for
other settings share a row, with the sentence of the first.

| section of the report | names (cells) | shows |
|---|---|---|
"""


def catalogue(study: Study) -> str:
    """Return the page in Markdown: one table, in the sections of the report."""
    rows: dict[tuple[str, type, str], list[str]] = {}
    sentences = {}
    for name, target in (*study.figures.items(), *study.tables.items()):
        row = target.section, type(target), name.partition("_")[0]
        cells = {cell for selection in target.selections() for cell in selection.cells()}
        rows.setdefault(row, []).append(f"`{name}` ({len(cells):,})")
        # A sentence ends with a full stop before a capital letter; "(10%)." and numbers do not end it.
        sentence = re.split(r"(?<=\.)\s+(?=[A-Z])", target.caption, maxsplit=1)[0]
        sentences.setdefault(row, sentence)
    order = list(dict.fromkeys(section for section, *_ in rows))
    lines = [
        f"| {row[0]} | {', '.join(rows[row])} | {sentences[row]} |"
        for row in sorted(rows, key=lambda row: order.index(row[0]))
    ]
    return _HEADER + "\n".join(lines) + "\n"


if __name__ == "__main__":
    command_line(__doc__).parse_args()
    sys.stdout.write(catalogue(load_study(Path("config.yaml"))))
