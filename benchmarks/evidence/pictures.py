"""Make the picture of docs/first-steps.md from the results of the demo.

    python -m benchmarks.evidence.pictures                        # from results/demo
    python -m benchmarks.evidence.pictures --results FOLDER       # from those in another folder

It is drawn from the numbers of a figure of a finished study. These numbers, and the study's verdicts about
the tuning rules, are kept in docs/images. The text below the picture states the verdicts, so readers do not
take noise for an effect. ``tests/figures/test_pictures.py`` draws the picture again.
"""

import re
import shutil
import textwrap
from pathlib import Path

import pandas as pd

from benchmarks.common import REPOSITORY, command_line
from dpsweep.analysis.frames import read_numbers
from dpsweep.base.files import write_text
from dpsweep.figures import style
from dpsweep.study import Paths, load_study
from dpsweep.study.targets import marks_sentence

DOCUMENT = REPOSITORY / "docs" / "first-steps.md"
STUDY = REPOSITORY / "studies" / "demo.yaml"
FIGURE, RULES = "fig1_accuracy_heatmaps", "tab1_tuning_implications"
PICTURE = REPOSITORY / "docs" / "images" / f"{FIGURE}.png"
VERDICTS = PICTURE.with_suffix(".rules.csv")
START, END = f"<!-- picture: {FIGURE} -->", "<!-- end of picture -->"
SHOWN = "ccuracy over clipping bound and batch size, for problems of increasing difficulty"


def draw(file: Path) -> None:
    """Draw the picture from its kept numbers."""
    figure = load_study(STUDY).figures[FIGURE]
    with style.style():
        figure.plot(read_numbers(PICTURE.with_suffix(".csv"))).savefig(file, dpi=300)


def said_of_rules(rules: pd.DataFrame) -> str:
    """Return the sentences about the tuning rules that a study decides."""
    decided = rules[rules["verdict"] != "not resolved"]
    if decided.empty:
        return (
            f"The study is too small to confirm or reject any of the paper's {len(rules)} tuning rules. "
            "Read the picture as an example of the output, not as evidence."
        )
    line = "{condition}: {implication} ({verdict})"
    listed = "; ".join(line.format_map(row) for _, row in decided.iterrows())
    return (
        f"Of the paper's {len(rules)} tuning rules, its table 1 decides {len(decided)}: {listed}. "
        "Whatever else the picture seems to show may be noise."
    )


def filled(document: str) -> str:
    """Return the document with the picture and its text between the marks."""
    study = load_study(STUDY)
    words = (
        f"*A figure of the demo: a{SHOWN}. {marks_sentence(study, study.figures[FIGURE])} "
        f"{said_of_rules(read_numbers(VERDICTS))} Other processors round differently: your accuracies and "
        "framed squares may differ.*"
    )
    image = f"![A{SHOWN} (demo study)]({PICTURE.relative_to(DOCUMENT.parent)})"
    lines = "\n".join([START, image, "", textwrap.fill(words, width=125), END])
    between = re.compile(f"{re.escape(START)}.*?{re.escape(END)}", re.DOTALL)
    return between.sub(lambda _: lines, document)


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--results", type=Path, help="results folder of the finished demo")
    paths = Paths(parser.parse_args().results or REPOSITORY / load_study(STUDY).results)
    shutil.copyfile(paths.figure(FIGURE, "csv"), PICTURE.with_suffix(".csv"))
    shutil.copyfile(paths.table(RULES, "csv"), VERDICTS)
    draw(PICTURE)
    write_text(DOCUMENT, filled(DOCUMENT.read_text(encoding="utf-8")))
