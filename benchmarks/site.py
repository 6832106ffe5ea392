"""Write the sources of the site for `make docs`: pages, a gallery, and pages to explore the findings.

python -m benchmarks.site build/pages
"""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.common import REPOSITORY, RESULTS, command_line
from dpsweep.report.explore import page
from dpsweep.study import Study, load_study

# Study, its committed trials, and the page about it.
EXPLORED = {
    "frozen-features": ("frozen_features.parquet", "findings"),
    "film": ("film/*.parquet", "findings"),
    "fashion-mnist": ("fashion/fashion-mnist.parquet", "findings"),
    "optimizers": ("fashion/optimizers.parquet", "findings"),
    "units": ("units/units.parquet", "findings"),
}
_IMAGE = re.compile(r"!\[(?P<shown>[^]]+)\]\((?P<file>images/[^)]+)\)")
# Columns that committed trials lack.
_UNKNOWN = ["mean_gradient_norm", "clipped_fraction"]


def explore_page(name: str, study: Study) -> str:
    """Return the page to explore the committed trials of a study."""
    files, about = EXPLORED[name]
    trials = pd.concat(map(pd.read_parquet, sorted(RESULTS.glob(files))), ignore_index=True)
    for column in _UNKNOWN:
        if column not in trials:
            trials[column] = np.nan
    return page(study, Path("studies", f"{name}.yaml"), trials, f"{about}/")


def gallery(pages: Path, studies: Mapping[str, Study]) -> str:
    """Return a page with every figure of the pages once, under its page, and links to the studies."""
    lines, seen = ["# Figures"], set[str]()
    for file in sorted(pages.glob("*.md"), key=lambda file: (file.stem == "index", file.stem)):
        text = file.read_text()
        if figures := [each for each in _IMAGE.finditer(text) if each["file"] not in seen]:
            heading = text.partition("\n")[0].removeprefix("# ")
            lines.append(f"## [{heading}]({file.name})")
            lines += [f"{each['shown']}.\n\n{each[0]}" for each in figures]
            seen.update(each["file"] for each in figures)
    lines.append("## Cells to explore")
    lines += [f"* [{study.title}](explore-{name}.html)" for name, study in studies.items()]
    return "\n\n".join(lines) + "\n"


def write(pages: Path) -> None:
    """Write the site's pages into a folder; its old content is removed."""
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(REPOSITORY / "docs", pages)
    for name in ("CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, pages)
    shutil.copy(REPOSITORY / "README.md", pages / "index.md")
    (pages / "benchmarks/results").mkdir(parents=True)
    for file in RESULTS.glob("calibration*.json"):
        shutil.copy(file, pages / "benchmarks/results")
    # Adapt the links: the site has README.md, docs/ and results in one folder.
    for file in pages.glob("*.md"):
        text = re.sub(r"\]\((docs/|\.\./)", "](", file.read_text())
        file.write_text(text.replace("](README.md", "](index.md"))
    studies = {name: load_study(REPOSITORY / "studies" / f"{name}.yaml") for name in EXPLORED}
    (pages / "gallery.md").write_text(gallery(pages, studies))
    for name, study in studies.items():
        (pages / f"explore-{name}.html").write_text(explore_page(name, study))


def main() -> None:
    """Write the pages."""
    parser = command_line(__doc__)
    parser.add_argument("pages", type=Path, help="folder to write")
    write(parser.parse_args().pages)


if __name__ == "__main__":
    main()
