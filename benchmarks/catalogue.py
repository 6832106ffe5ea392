"""Write a page with all figures and tables of a study: command, caption, number of cells.

python -m benchmarks.catalogue > docs/figures.md
"""

import re
import sys
from pathlib import Path

from benchmarks.common import command_line
from dpsweep.study.load import load_study
from dpsweep.study.paths import Paths
from dpsweep.study.study import Study
from dpsweep.study.targets import Figure, PrintedTable

_HEADER = """\
# Figures and tables

`python -m benchmarks.catalogue > docs/figures.md` makes this page from `config.yaml`; do not edit it.

Ask for any of them by name. Snakemake trains the cells that it shows and that do not exist yet. `-n`
lists them; `snakemake plan --config targets=<name>` estimates their cost. The demo draws the same figures
from small networks and data: `snakemake --profile demo results/demo/figures/<name>.pdf`.

A figure is written as `pdf`, as `png` (300 dpi) and as `csv` with its numbers; a table as `tex`, `md` and
`csv`. The report has the full captions. A row in italics begins a section of the report.

| name and command | shows | cells |
|---|---|---:|
"""


def catalogue(study: Study) -> str:
    """Return the page in Markdown: one table, in the sections of the report."""
    paths = Paths(Path(study.results))
    sections: dict[str, list[str]] = {}
    for name, figure in study.figures.items():
        row = _row(name, figure, paths.figure(name, "pdf"))
        sections.setdefault(figure.section, []).append(row)
    for name, table in study.tables.items():
        row = _row(name, table, paths.table(name, "md"))
        sections.setdefault(table.section, []).append(row)
    rows = [row for name, own in sections.items() for row in (f"| *{name}* | | |", *own)]
    return _HEADER + "\n".join(rows) + "\n"


def _row(name: str, target: Figure | PrintedTable, file: Path) -> str:
    cells = {cell for selection in target.selections() for cell in selection.cells()}
    # A sentence ends with a full stop before a capital letter; "(10%)." and numbers do not end it.
    sentence = re.split(r"(?<=\.)\s+(?=[A-Z])", target.caption, maxsplit=1)[0]
    return f"| **{name}**<br>`snakemake {file.as_posix()}` | {sentence} | {len(cells):,} |"


if __name__ == "__main__":
    command_line(__doc__).parse_args()
    sys.stdout.write(catalogue(load_study(Path("config.yaml"))))
