"""Make the pictures of README and docs from the results of a study.

    python -m benchmarks.evidence.pictures                        # from the results that each study names
    python -m benchmarks.evidence.pictures --results FOLDER       # from those in another folder

A picture is drawn from the numbers of a figure of a finished study. They are kept beside it in
docs/images, and so is what the study says of the tuning rules: the words under the picture say it too, so
that nobody takes noise for an effect. ``tests/figures/test_document_pictures.py`` draws them again.
"""

import re
import shutil
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from benchmarks.common import REPOSITORY, command_line
from dpsweep.base.files import write_text
from dpsweep.figures import style
from dpsweep.figures.draw import FAMILIES
from dpsweep.figures.tables.write import read_numbers
from dpsweep.study import load_study
from dpsweep.study.captions import said_of_marks
from dpsweep.study.paths import Paths

IMAGES = REPOSITORY / "docs" / "images"
END = "<!-- end of picture -->"


@dataclass(frozen=True)
class Picture:
    """A figure of a study, in a document.

    Attributes:
        document: where it stands, between ``<!-- picture: <figure> -->`` and an end mark.
        study: the study's file.
        figure: its figure.
        rules: its table of tuning rules.
        shows: what the figure shows, as the document says it.
    """

    document: str
    study: str
    figure: str
    rules: str
    shows: str

    @property
    def stem(self) -> Path:
        """Name of the picture and of the files beside it, without their suffixes."""
        return IMAGES / self.figure

    @property
    def verdicts(self) -> Path:
        """Verdicts of the study on the tuning rules."""
        return self.stem.with_suffix(".rules.csv")

    @property
    def start(self) -> str:
        """The mark before it in the document."""
        return f"<!-- picture: {self.figure} -->"


PICTURES = [
    Picture(
        "README.md",
        "studies/demo.yaml",
        "fig1_accuracy_heatmaps",
        "tab1_tuning_implications",
        "accuracy over clipping bound and batch size, for problems of increasing difficulty",
    )
]


def draw(picture: Picture, file: Path) -> None:
    """Draw a picture from the numbers that lie beside it."""
    figure = load_study(REPOSITORY / picture.study).figures[picture.figure]
    numbers = read_numbers(picture.stem.with_suffix(".csv"))
    _, plot = FAMILIES[figure.family]
    with style.style():
        plot(figure, numbers).savefig(file, dpi=300)


def words(picture: Picture) -> list[str]:
    """The lines of a picture in its document: the picture, what it shows, what the study says."""
    image = picture.stem.with_suffix(".png").relative_to((REPOSITORY / picture.document).parent)
    study = load_study(REPOSITORY / picture.study)
    name = study.title.partition(":")[0].lower()
    return [
        f"![{picture.shows[0].upper()}{picture.shows[1:]} ({name} study)]({image.as_posix()})",
        "",
        textwrap.fill(
            f"*A figure of the {name}: {picture.shows}. "
            f"{said_of_marks(study, study.figures[picture.figure])} "
            f"{said_of_rules(read_numbers(picture.verdicts))} Other processors round differently: your "
            "accuracies, and the squares that are framed, may be others.*",
            width=125,
        ),
    ]


def said_of_rules(rules: pd.DataFrame) -> str:
    """Which of the tuning rules a study supports, so that a picture is not read as one of them."""
    decided = rules[rules["verdict"] != "not resolved"]
    if decided.empty:
        return (
            f"The study is too small to confirm or reject any of the paper's {len(rules)} tuning rules. "
            "Read the picture as an example of the output, not as evidence."
        )
    listed = "; ".join(
        f"{row['condition']}: {row['implication']} ({row['verdict']})"
        for _, row in decided.iterrows()
    )
    return (
        f"Of the paper's {len(rules)} tuning rules, its table 1 decides {len(decided)}: {listed}. "
        "Whatever else the picture seems to show may be noise."
    )


def filled(picture: Picture, document: str) -> str:
    """The document with the picture between its marks."""
    between = re.compile(f"{re.escape(picture.start)}.*?{re.escape(END)}", re.DOTALL)
    lines = "\n".join([picture.start, *words(picture), END])
    return between.sub(lambda _: lines, document)


def make(picture: Picture, results: Path | None) -> None:
    """Take numbers and verdicts from results, draw the picture, and write its words."""
    study = load_study(REPOSITORY / picture.study)
    paths = Paths(results or REPOSITORY / study.results)
    IMAGES.mkdir(exist_ok=True)
    shutil.copyfile(paths.figure(picture.figure, "csv"), picture.stem.with_suffix(".csv"))
    shutil.copyfile(paths.table(picture.rules, "csv"), picture.verdicts)
    draw(picture, picture.stem.with_suffix(".png"))
    document = REPOSITORY / picture.document
    write_text(document, filled(picture, document.read_text(encoding="utf-8")))
    print(picture.stem.with_suffix(".png").relative_to(REPOSITORY))


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--results", type=Path, help="results folder of a finished study")
    for each in PICTURES:
        make(each, parser.parse_args().results)
